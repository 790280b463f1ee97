/* SPDX-License-Identifier: GPL-2.0-only */
/* What is pinned and shared with the daemon (rings, boxes), and memory that lives for one call. */
#pragma once

/* One class of events. The law: seen = delivered + dropped_ring + dropped_map + unreadable. */
struct class_count {
	u64 seen;
	u64 delivered;
	u64 dropped_ring;
	u64 dropped_map;     /* the box has no ring (any more) */
	u64 unreadable;      /* no record could be made */
	u64 partial;         /* beside the law: delivered, but some field could not be read */
};

struct box {
	u64 seq;
	u64 ring;            /* its slot in rings */
	u64 flags;           /* BOX_* */
	struct class_count count[CAISSON_KIND_MAX];
};

#define BOX_LOOK 1           /* record LOOK too */
#define BOX_ATTACHED 2       /* its processes were there before and need not have come by an exec */

/* One number's rules: of a 64-bit call and of a 32-bit call. */
struct rule {
	u64 word[2];
};

struct call_head {
	u32 nr;
	u32 length;          /* bytes of the first path (with NUL) or of the address; 0 = could not be read */
	u32 second;          /* bytes of the second path */
	u32 fd;              /* io_uring: slot in the ring's table plus 1, or what stands for one */
	u64 arg[6];          /* open: flags, mode; clone: flags; socketcall and io_uring: all arguments */
	u64 user;            /* where the path stands in the caller's memory; io_uring: the request's user data */
	u32 call;            /* enum call */
	u16 told;            /* trampoline: open: has its record; else: the bytes are the kernel's own copy */
	u16 changed;         /* trampoline: that copy was not what stood in memory at entry */
};

struct small_call {
	struct call_head head;
	char bytes[SMALL_PATH];
};

/* A place in call_slots. */
struct call_slot {
	u64 owner;           /* the thread whose call lies here; 0: none */
	struct small_call call;
};

struct large_call {
	struct call_head head;
	char bytes[LARGE_PATH + PATH_READ + 7];
};

/*
 * What a program tells the next one it calls, and what it must not remember in registers: a number that decides a way and
 * then an address keeps that way apart from all others, to the end. Read anew from here it is just a number.
 */
struct now {
	volatile u64 key;    /* of what was kept, in large_calls and (a thread) slots; 0 = nothing was */
	volatile u64 rule;
	volatile u64 arg[8]; /* as passed; the last two stay 0 */
	volatile s64 ret;
	volatile u32 nr;
	volatile u32 compat;
	volatile u32 flags;  /* of the record: IO_URING, DIRECT, PENDING */
	volatile u32 next;   /* message that is looked at next */
	volatile u64 file;   /* address of the object */
	volatile u64 control, length, offset; /* of a message's control data */
	volatile u32 item, passed;
	volatile s64 dirfd, newdir;
	volatile u64 kept;   /* where the second path is */
	volatile u32 first, second; /* bytes of the two paths kept */
	volatile u32 relative;
	volatile u32 kind;   /* of the record that is begun and finished by another program */
	struct {
		volatile u64 mnt, dentry;
		volatile u32 tag;
	} walk[WALKS];       /* to be added by that program; tag 0: none */
};

/* A TCP connect between SYN and its outcome; who asked, since the outcome comes in nobody's name. */
struct unsettled {
	u64 box, start, parent_start, cgroup, inode;
	u64 turns;           /* the second of (call returned, outcome came) tells it */
	u32 pid, tid, ppid, uid, gid, fd, type, error;
	char comm[16];
};

/*
 * The state of the record being built lies in map memory and is volatile on purpose: what the verifier reads back from
 * there it knows nothing about, so all ways through a walk look the same to it and are followed once. On the stack the
 * same numbers cost more than a million steps.
 */
struct scratch {
	volatile u32 off;        /* where the next field begins */
	volatile u32 nfields;
	volatile u32 flags;
	volatile u32 partial;    /* a read failed */
	volatile u32 length;     /* of the walk so far */
	volatile u32 end;        /* how the walk ended */
	volatile u64 kept;       /* address of what was kept at entry */
	struct call_head head;   /* a copy of its head */
	u64 span[SPAN_WORDS];    /* READ_SPAN */
	struct now now;
	u8 data[SCRATCH];
};

BPF_RINGBUF_OUTPUT(ring_shape, 1);                     /* only the shape of the inner maps */
BPF_HASH_OF_MAPS(rings, u64, "ring_shape", BOXES);     /* slot -> ring; a box borrows one */
BPF_HASH(boxes, u64, struct box, BOXES);               /* box cgroup id -> sequence and counters */
BPF_ARRAY(levels, u32, ATTACH_LEVELS);                 /* depths of attached cgroups; the first 0 ends the list */
#ifdef CAISSON_FETCH
BPF_ARRAY(call_slots, struct call_slot, SMALL_SLOTS);
#else
BPF_HASH(small_calls, u32, struct small_call, SMALL_SLOTS);
#endif
BPF_HASH(large_calls, u64, struct large_call, LARGE_SLOTS); /* by thread, or by address of an io_uring request */
BPF_ARRAY(scratches, struct scratch, CAISSON_CPUS);
BPF_ARRAY(call_scratches, struct large_call, CAISSON_CPUS);
BPF_ARRAY(rules, struct rule, 1024);                   /* by call number; the loader fills it */
BPF_PROG_ARRAY(stages, 16);                            /* pinned: the kernel empties it when nobody holds it */
BPF_HASH(members, u32, u64, MEMBERS);                  /* process -> box */
BPF_HASH(unsettled, u64, struct unsettled, UNSETTLED); /* by address of the socket */
