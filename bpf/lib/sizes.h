/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every bound in one place, with its reason.
 *
 * A record is built in scratch memory of its CPU (an array indexed by CPU, because a per-CPU map refuses values over
 * 32 KiB) and copied into the box's ring at its true length. The fixed part and every field but the last start below
 * BODY; argv comes last and may be long:
 *
 *   144 fixed + given 4105 + given at exit 4105 + walk 4105 + cwd 4105 = 16 564, interpreter 264   < BODY = 32 KiB
 *   scratch = BODY + ARGV_MAX + slack                                                    = 164 KiB for each CPU
 *
 * BODY and the other masks are powers of two: `offset & (BODY - 1)` is the bound the verifier can follow.
 */
#pragma once

#define BODY 32768u
#define ARGV_MAX 131072u          /* MAX_ARG_STRLEN: the longest single argument the kernel takes */
#define SCRATCH (BODY + ARGV_MAX + 64)

#define PATH_BYTES 4096u          /* PATH_MAX, closing NUL included: no system call takes a longer path */
#define PATH_READ (PATH_BYTES + 1) /* one byte more, so that a longer string is seen to be longer */
#define NAME_READ 256u            /* NAME_MAX and a NUL */
#define INTERP_READ 256u          /* BINPRM_BUF_SIZE */

#define WALK_STEPS 288            /* names and mount crossings of a resolved path: 256 names in any case */

/* Between the two halves of a call: one small slot for nearly every path, a large one for the rest. */
#define SMALL_PATH 256u
#define SMALL_SLOTS 8192
#define LARGE_SLOTS 512           /* 4 KiB each; when they run out, the record says NO_ENTRY */

#define ADDR_BYTES 128u           /* sizeof(struct sockaddr_storage) */

#define BOXES 1024                /* at once */
#define ATTACH_LEVELS 4           /* depths at which attached containers lie; docker's are all at one */
