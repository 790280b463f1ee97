/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is taken from a call, as data: 64 bits for each number, written by the loader from caisson_tracerd/rules.py and
 * decoded here. So a call is one array access away from "none of our business", and a new one costs no code.
 */
#pragma once

enum stage {
	STAGE_NONE,
	STAGE_OPEN,
	STAGE_NAMES,
	STAGE_EXEC,
	STAGE_CONNECT,
	STAGE_SOCKET,
	STAGE_SEND,
	STAGE_RECEIVE,
	STAGE_REST,
	STAGE_WALKS,
	STAGE_SECOND
};

enum special {
	SPECIAL_NONE,
	SPECIAL_CREAT,
	SPECIAL_OPENAT2,
	SPECIAL_FORK,
	SPECIAL_VFORK,
	SPECIAL_CLONE,
	SPECIAL_CLONE3,
	SPECIAL_SOCKETCALL,
	SPECIAL_MESSAGE,
	SPECIAL_MMAP,
	SPECIAL_IOCTL,
	SPECIAL_PRCTL,
	SPECIAL_PTRACE,
	SPECIAL_UNLINKAT,
	SPECIAL_SENDTO,
	SPECIAL_MESSAGES,
	SPECIAL_SETSOCKOPT
};

#define NOWHERE 7                          /* an argument number that means: none; the value there is 0 */
#define RULE_STAGE(r) ((r) & 15)
#define RULE_KIND(r) ((r) >> 4 & 15)
#define RULE_OP(r) ((r) >> 8 & 255)
#define RULE_PATH(r) ((r) >> 16 & 7)       /* first path, or the address */
#define RULE_DIR(r) ((r) >> 19 & 7)
#define RULE_NEW(r) ((r) >> 22 & 7)        /* second path, or the address's length */
#define RULE_NEWDIR(r) ((r) >> 25 & 7)
#define RULE_FD(r) ((r) >> 28 & 7)         /* the object is this descriptor's */
#define RULE_NAME(r) ((r) >> 31 & 7)
#define RULE_V1(r) ((r) >> 34 & 7)
#define RULE_V2(r) ((r) >> 37 & 7)
#define RULE_ENTRY (1ull << 40)            /* something is kept between the call's ends */
#define RULE_RETFD (1ull << 41)            /* the object is the returned descriptor's */
#define RULE_TEXT (1ull << 42)             /* the first path is no path: no folder belongs to it */
#define RULE_ADDRESS (1ull << 43)
#define RULE_SPECIAL(r) ((r) >> 44 & 63)

#define URING_RULES 768                    /* rules of io_uring operations begin here */
