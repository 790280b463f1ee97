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
	CAISSON_OPEN = 4,    /* arg0 dirfd (signed), arg1 open flags, arg2 mode (openat2: | resolve flags << 32), arg3 dev,
				arg4 ino, arg5 syscall number (io_uring: the opcode) */
	CAISSON_CONNECT = 5, /* arg0 family, arg1 port (host order), arg2 protocol, arg3 fd, arg4 socket type,
				arg5 inode number of the socket */
	CAISSON_CHANGE = 6,  /* arg0 enum caisson_change, arg1 dirfd or fd (signed), arg2 and arg5 see there, arg3 dev, arg4 ino
				of the object where one was at hand */
	CAISSON_LOOK = 7,    /* arg0 enum caisson_look, arg1 dirfd or fd (signed), arg2 and arg5 flags, arg3 dev, arg4 ino */
	CAISSON_PASS = 8,    /* a descriptor came without an open: arg0 enum caisson_pass, arg1 the new descriptor, arg2 and
				arg5 see there, arg3 dev, arg4 ino */
	CAISSON_CROSS = 9,   /* arg0 enum caisson_cross, arg1 syscall number, arg2.. the call's first four arguments; setns:
				arg4 dev, arg5 ino of the namespace; cgroup: see there */
	CAISSON_SOCKET = 10, /* arg0 enum caisson_socket, arg1 family, arg2 port (host order), arg3 fd, arg4 socket type |
				protocol << 16, arg5 inode number of the socket */
	CAISSON_KIND_MAX = 16,
};

/* Behind the semicolon: arg2, arg5, as the caller passed them. */
enum caisson_change {
	CAISSON_CHANGE_RENAME = 1,        /* GIVEN -> NEW; flags (1 no replace, 2 exchange, 4 whiteout), new dirfd */
	CAISSON_CHANGE_LINK = 2,          /* GIVEN -> NEW; -, new dirfd */
	CAISSON_CHANGE_SYMLINK = 3,       /* GIVEN is the text of the link, NEW its name; -, new dirfd */
	CAISSON_CHANGE_UNLINK = 4,        /* flags */
	CAISSON_CHANGE_RMDIR = 5,         /* flags */
	CAISSON_CHANGE_MKDIR = 6,         /* mode */
	CAISSON_CHANGE_MKNOD = 7,         /* mode, device */
	CAISSON_CHANGE_TRUNCATE = 8,      /* length, (32-bit call: its upper half) */
	CAISSON_CHANGE_CHMOD = 9,         /* mode, flags */
	CAISSON_CHANGE_CHOWN = 10,        /* owner, group */
	CAISSON_CHANGE_UTIME = 11,        /* flags */
	CAISSON_CHANGE_SETXATTR = 12,     /* NAME; bytes, flags */
	CAISSON_CHANGE_REMOVEXATTR = 13,  /* NAME; flags */
	CAISSON_CHANGE_MOUNT = 14,        /* GIVEN is the source, NEW the target, NAME the type; flags */
	CAISSON_CHANGE_UMOUNT = 15,       /* flags */
	CAISSON_CHANGE_MOVE_MOUNT = 16,   /* GIVEN -> NEW; flags, new dirfd */
	CAISSON_CHANGE_OPEN_TREE = 17,    /* flags; the object is what the new descriptor holds */
	CAISSON_CHANGE_FSOPEN = 18,       /* NAME is the type; flags */
	CAISSON_CHANGE_FSCONFIG = 19,     /* NAME is the key; command, aux */
	CAISSON_CHANGE_FSMOUNT = 20,      /* flags, attributes */
	CAISSON_CHANGE_FSPICK = 21,       /* flags */
	CAISSON_CHANGE_MOUNT_SETATTR = 22,/* flags */
	CAISSON_CHANGE_MMAP = 23,         /* a file mapped shared and writable; protection, flags */
	CAISSON_CHANGE_MEMFD = 24,        /* NAME; flags; arg1 the new descriptor */
	CAISSON_CHANGE_SETATTR = 25,      /* file_setattr; flags */
};

enum caisson_look {
	CAISSON_LOOK_STAT = 1,
	CAISSON_LOOK_ACCESS = 2,
	CAISSON_LOOK_READLINK = 3,
	CAISSON_LOOK_GETDENTS = 4,
	CAISSON_LOOK_STATFS = 5,
	CAISSON_LOOK_HANDLE = 6,          /* name_to_handle_at */
	CAISSON_LOOK_WATCH = 7,           /* inotify_add_watch, fanotify_mark */
	CAISSON_LOOK_GETXATTR = 8,        /* NAME; also a list of them */
	CAISSON_LOOK_CHDIR = 9,
};

enum caisson_pass {
	CAISSON_PASS_MESSAGE = 1,         /* SCM_RIGHTS; the receiving socket */
	CAISSON_PASS_PIDFD = 2,           /* pidfd_getfd; pidfd, the number there */
	CAISSON_PASS_HANDLE = 3,          /* open_by_handle_at; mount descriptor, flags */
	CAISSON_PASS_ADDFD = 4,           /* seccomp: a supervisor puts arg1 into the process it supervises; flags, its own number */
	CAISSON_PASS_RING = 5,            /* io_uring: between rings, or out of a ring's table; the numbers there */
};

enum caisson_cross {
	CAISSON_CROSS_SETNS = 1,
	CAISSON_CROSS_UNSHARE = 2,
	CAISSON_CROSS_CGROUP = 3,         /* GIVEN the new cgroup; arg1 pid that was moved, arg2 cgroup id, arg3 1: still in the box,
					     arg4 hierarchy (0 is version 2) */
	CAISSON_CROSS_PTRACE = 4,         /* without the requests that only read or go on */
	CAISSON_CROSS_VM_READ = 5,
	CAISSON_CROSS_VM_WRITE = 6,
	CAISSON_CROSS_BPF = 7,
	CAISSON_CROSS_MODULE = 8,
	CAISSON_CROSS_KEYCTL = 9,
	CAISSON_CROSS_URING = 10,
	CAISSON_CROSS_USERFAULTFD = 11,
	CAISSON_CROSS_CHROOT = 12,
	CAISSON_CROSS_PIVOT_ROOT = 13,
	CAISSON_CROSS_PRCTL = 14,         /* name (NAME), memory layout, seccomp, tracer, securebits, subreaper */
	CAISSON_CROSS_SECCOMP = 15,
	CAISSON_CROSS_PERF = 16,
	CAISSON_CROSS_KEXEC = 17,
	CAISSON_CROSS_CLOCK = 18,
	CAISSON_CROSS_HOST = 19,          /* host name, swap, reboot, accounting, I/O ports */
	CAISSON_CROSS_MARK = 20,          /* setsockopt: mark, device */
};

enum caisson_socket {
	CAISSON_SOCKET_CREATE = 1,
	CAISSON_SOCKET_BIND = 2,
	CAISSON_SOCKET_LISTEN = 3,
	CAISSON_SOCKET_ACCEPT = 4,        /* ADDR is the peer's */
	CAISSON_SOCKET_SEND = 5,          /* with a destination; one record for each message */
	CAISSON_SOCKET_FASTOPEN = 6,      /* a send that connects */
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
	CAISSON_F_KERNEL = 1 << 9,      /* name or address as given (a change: its object) is the kernel's own, out of the caller's reach */
	CAISSON_F_LATER = 1 << 10,      /* connect: how an attempt ended that was under way when its call returned */
	CAISSON_F_PENDING = 1 << 11,    /* io_uring: written before the result was known */
	CAISSON_F_DIRECT = 1 << 12,     /* io_uring: the number is a slot of the ring's own table */
};

enum caisson_tag {
	CAISSON_T_GIVEN = 1,       /* path as given, read at entry */
	CAISSON_T_GIVEN_EXIT = 2,  /* path as given, read at exit; absent when equal */
	CAISSON_T_RESOLVED = 3,    /* absolute path below the task's root */
	CAISSON_T_WALK = 4,        /* the same as names from the leaf up, each with a closing NUL; "" never occurs */
	CAISSON_T_ARGV = 5,        /* arguments, each with a closing NUL */
	CAISSON_T_CWD = 6,         /* like RESOLVED; exec: the working folder, else the folder a relative GIVEN starts from */
	CAISSON_T_CWD_WALK = 7,    /* like WALK */
	CAISSON_T_INTERP = 8,
	CAISSON_T_ADDR = 9,        /* struct sockaddr as the caller passed it */
	CAISSON_T_NEW = 10,        /* second path as given, read at entry */
	CAISSON_T_NEW_EXIT = 11,   /* and at exit; absent when equal */
	CAISSON_T_NEW_CWD = 12,    /* the folder a relative NEW starts from; absent when it is the same as of GIVEN */
	CAISSON_T_NEW_CWD_WALK = 13,
	CAISSON_T_NAME = 14,       /* another name: attribute, memfd, file system, task */
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
