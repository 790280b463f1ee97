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
	struct class_count count[CAISSON_KIND_MAX];
};

struct call_head {
	u32 nr;
	u32 length;          /* bytes of path (with NUL) or address; 0 = could not be read */
	u64 arg[3];          /* open: flags, mode; connect: fd, address length; clone: flags */
	u64 user;            /* where the path stands in the caller's memory */
	u32 call;            /* enum call */
	u16 told;            /* trampoline: open: has its record; exec, connect: the bytes are the kernel's own copy */
	u16 changed;         /* trampoline: that copy was not what stood in memory at entry */
};

struct small_call {
	struct call_head head;
	char bytes[SMALL_PATH];
};

struct large_call {
	struct call_head head;
	char bytes[PATH_READ + 7];
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
	u8 data[SCRATCH];
};

BPF_RINGBUF_OUTPUT(ring_shape, 1);                     /* only the shape of the inner maps */
BPF_HASH_OF_MAPS(rings, u64, "ring_shape", BOXES);     /* slot -> ring; a box borrows one */
BPF_HASH(boxes, u64, struct box, BOXES);               /* box cgroup id -> sequence and counters */
BPF_ARRAY(levels, u32, ATTACH_LEVELS);                 /* depths of attached cgroups; the first 0 ends the list */
BPF_HASH(small_calls, u32, struct small_call, SMALL_SLOTS);
BPF_HASH(large_calls, u32, struct large_call, LARGE_SLOTS);
BPF_ARRAY(scratches, struct scratch, CAISSON_CPUS);
BPF_ARRAY(call_scratches, struct large_call, CAISSON_CPUS);
