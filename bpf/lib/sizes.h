/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every bound in one place, with its reason.
 *
 * A record is built in scratch memory of its CPU (an array indexed by CPU, because a per-CPU map refuses values over
 * 32 KiB) and copied into the box's ring at its true length. The fixed part and every field but the last start below
 * BODY; argv comes last and may be long:
 *
 *   144 fixed + given 4105 + given at exit 4105 + walk 4105 + cwd 4105 = 16 564, interpreter 264
 *   144 fixed + two paths, each given twice and with its folder 6 * 4105, walk 4105, name 265 = 29 144   < BODY = 32 KiB
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

/* Between the two halves of a call: one small slot for nearly every path or two, a large one for the rest. */
#define SMALL_PATH 256u
#define SMALL_SLOTS 8192
#define LARGE_PATH 8192u          /* a power of two; two paths, the second on a multiple of 8 */
#define CHANGE_SLOTS 512          /* trampoline: objects of changes that are under way, 4 KiB each */
#define RING_OPENS 4096           /* trampoline: opens of io_uring under way; the oldest gives way */
#define LARGE_SLOTS 512           /* 12 KiB each; when they run out, the record says NO_ENTRY or PENDING */

#define REFUSED_ARGC 256          /* of a refused exec: so many arguments, each so long, together so long */
#define REFUSED_ARG 4096u
#define REFUSED_ALL 12288u

#define ADDR_BYTES 128u           /* sizeof(struct sockaddr_storage) */

#define BOXES 1024                /* at once */
#define MEMBERS 65536             /* processes whose box is remembered, for when they are moved out of it */
#define UNSETTLED 8192            /* connects under way */
#define WALKS 3                   /* paths resolved for one record: object, folder of the old name, folder of the new one */
#define CGROUP_DEPTH 16           /* levels looked at to tell whether a cgroup lies below a box */

/*
 * One program may call another 33 times. A batch that does not fit (253 descriptors in a message, 1024 messages in a
 * call) goes on with less: descriptors beyond PASSED come without a path, messages beyond 32 * SENDS are counted.
 */
#define PASSED 26                 /* descriptors with a path, one to a program */
#define PASS_STEPS 64             /* control messages looked at in one program */
#define PASS_REST 60              /* descriptors without a path in one program, of which five can follow */
#define SENDS 32                  /* messages of sendmmsg in one program; a call has 1024 at most */
#define ATTACH_LEVELS 4           /* depths at which attached containers lie; docker's are all at one */
