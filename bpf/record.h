/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one layout of every record: written by the programs in this folder, read by caisson_proto.record, and
 * written there too for witnesses that are not BPF. All numbers little endian.
 *
 *   struct caisson_rec            fixed part, 144 bytes
 *   field*                        zero or more, each: u16 tag, u16 flags, u32 len, len bytes; no padding between
 *   padding to a multiple of 8    zero bytes
 *
 * In a ring and in a journal each record stands behind the kernel's 8-byte ring header; in a bundle it does not.
 */
#pragma once

enum caisson_kind {
	CAISSON_FORK = 1,    /* arg0 child pid, arg1 child tid, arg2 child start_ns, arg3 clone flags if known */
	CAISSON_EXEC = 2,    /* arg0 dev, arg1 ino, arg2 nlink, arg3 argc, arg4 tid before the call; error != 0: refused */
	CAISSON_EXIT = 3,    /* arg0 exit status, arg1 signal, arg2 core dumped */
	CAISSON_OPEN = 4,    /* arg0 dirfd (signed), arg1 open flags, arg2 mode, arg3 dev, arg4 ino, arg5 syscall number */
	CAISSON_CONNECT = 5, /* arg0 family, arg1 port (host order), arg2 protocol, arg3 fd, arg4 socket type */
	CAISSON_KIND_MAX = 16,
};

enum caisson_flag {
	CAISSON_F_TRUNCATED = 1 << 0,   /* some field is shorter than the truth */
	CAISSON_F_TOCTOU = 1 << 1,      /* path at entry and path at exit differ */
	CAISSON_F_UNRESOLVED = 1 << 2,  /* no resolved path although the call succeeded */
	CAISSON_F_COMPAT32 = 1 << 3,    /* 32-bit call */
	CAISSON_F_IO_URING = 1 << 4,
	CAISSON_F_UPPER = 1 << 5,       /* the object lies in the overlay's writable layer */
	CAISSON_F_DELETED = 1 << 6,     /* the object has no name any more, or never had one (memfd) */
	CAISSON_F_THREAD = 1 << 7,      /* fork: a thread was made; exit: a thread that is not the last of its process */
	CAISSON_F_NO_ENTRY = 1 << 8,    /* only the exit half was seen (seccomp) */
	CAISSON_F_KERNEL = 1 << 9,      /* path or address as given is the kernel's own copy, out of the caller's reach */
};

enum caisson_tag {
	CAISSON_T_GIVEN = 1,       /* path as given, read at entry */
	CAISSON_T_GIVEN_EXIT = 2,  /* path as given, read at exit; absent when equal */
	CAISSON_T_RESOLVED = 3,    /* absolute path below the task's root */
	CAISSON_T_WALK = 4,        /* the same as names from the leaf up, each with a closing NUL; "" never occurs */
	CAISSON_T_ARGV = 5,        /* arguments, each with a closing NUL */
	CAISSON_T_CWD = 6,         /* like RESOLVED */
	CAISSON_T_CWD_WALK = 7,    /* like WALK */
	CAISSON_T_INTERP = 8,
	CAISSON_T_ADDR = 9,        /* struct sockaddr as the caller passed it */
};

/* A field's own flags. */
enum caisson_field_flag {
	CAISSON_FIELD_CUT = 1 << 0, /* this field is shorter than the truth; a cut walk lacks the names next to the root */
};

struct caisson_rec {
	unsigned int size;              /* of the whole record, a multiple of 8 */
	unsigned short kind;
	unsigned short nfields;
	unsigned long long seq;         /* in the box, from 1; 0 = take the position */
	unsigned long long time_ns;     /* CLOCK_BOOTTIME */
	unsigned long long start_ns;    /* start_boottime of the thread group leader: with pid the process identity */
	unsigned long long parent_start_ns;
	unsigned long long cgroup;      /* the task's own cgroup id */
	unsigned int pid, tid;          /* thread group and thread, in the initial pid namespace */
	unsigned int ppid;
	unsigned int uid, gid;
	int error;                      /* 0 or a positive errno */
	unsigned int flags;
	unsigned int reserved;
	char comm[16];
	unsigned long long arg[6];
};
