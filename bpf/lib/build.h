/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Building one record in the CPU's scratch and sending it to the box's ring. Raw tracepoint programs run with preemption
 * off (not from Linux 7.x on, see README.md) and the programs here never nest, so a CPU's scratch has one user at a time.
 */
#pragma once

struct build {
	struct box *box;
	struct scratch *scratch;
	u32 kind;
};

#define REC(b) ((struct caisson_rec *)(b)->scratch->data)

/* The cgroup at a level above the task's own, or 0. */
INLINE u64 ancestor_id(int level)
{
#ifdef CAISSON_ANCESTOR
	return bpf_get_current_ancestor_cgroup_id(level);
#else /* 5.10 has the helper for other programs only; there each cgroup lists the ids of those above it */
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct css_set *set = 0;
	struct cgroup *cgroup = 0;
	int depth = 0;
	u64 id = 0;

	READ(set, task_struct, task, cgroups);
	READ(cgroup, css_set, set, dfl_cgrp);
	READ(depth, cgroup, cgroup, level);
	if (level < 0 || level > depth)
		return 0;
	bpf_probe_read_kernel(&id, sizeof(id), (void *)((u64)cgroup + OFFSET(cgroup, ancestor_ids) + (u64)level * 8));
	return id;
#endif
}

/*
 * The box this task is in, by the ancestor at the level of boxes: a child cgroup made inside is still the box. Containers
 * of others are attached where they are, so their levels are looked at too, while there are any.
 */
INLINE struct box *find_box(u64 *id)
{
	struct box *box;
	u32 i, slot, *level;

	*id = ancestor_id(CAISSON_BOX_LEVEL);
	box = boxes.lookup(id);
	if (box)
		return box;
#pragma unroll
	for (i = 0; i < ATTACH_LEVELS; i++) {
		slot = i;
		level = levels.lookup(&slot);
		if (!level || !*level)
			return 0;
		*id = ancestor_id(*level);
		box = boxes.lookup(id);
		if (box)
			return box;
	}
	return 0;
}

INLINE struct box *current_box(void)
{
	u64 id;

	return find_box(&id);
}

/* What the calling program left for the one it called. */
INLINE struct now *called(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct scratch *scratch = scratches.lookup(&cpu);

	return scratch ? &scratch->now : 0;
}

INLINE u8 *at(struct build *b, u32 off)
{
	OPAQUE(off);
	return &b->scratch->data[off & (BODY - 1)];
}

/* Who it is: ids, process identity, parent identity, owner, name. */
INLINE void fill_task(struct build *b, struct task_struct *task)
{
	struct caisson_rec *rec = REC(b);
	struct task_struct *leader = 0, *parent = 0;
	u64 ids = bpf_get_current_pid_tgid(), owner = bpf_get_current_uid_gid();
	struct scratch *s = b->scratch;

	rec->time_ns = bpf_ktime_get_boot_ns();
	rec->cgroup = bpf_get_current_cgroup_id();
	rec->pid = ids >> 32;
	rec->tid = ids;
	rec->uid = owner;
	rec->gid = owner >> 32;
	rec->reserved = 0;
	if (CLOSE(task_struct, real_parent, real_parent, group_leader)) {
		s->partial |= READ_SPAN(s, task_struct, task, real_parent, group_leader);
		IN_SPAN(s, parent, task_struct, real_parent, real_parent);
		IN_SPAN(s, leader, task_struct, real_parent, group_leader);
	} else {
		s->partial |= READ(leader, task_struct, task, group_leader);
		s->partial |= READ(parent, task_struct, task, real_parent);
	}
	s->partial |= READ(rec->start_ns, task_struct, leader, start_boottime);
	if (CLOSE(task_struct, tgid, tgid, group_leader)) {
		s->partial |= READ_SPAN(s, task_struct, parent, tgid, group_leader);
		IN_SPAN(s, rec->ppid, task_struct, tgid, tgid);
		IN_SPAN(s, leader, task_struct, tgid, group_leader);
	} else {
		s->partial |= READ(rec->ppid, task_struct, parent, tgid);
		s->partial |= READ(leader, task_struct, parent, group_leader);
	}
	s->partial |= READ(rec->parent_start_ns, task_struct, leader, start_boottime);
	bpf_get_current_comm(rec->comm, sizeof(rec->comm));
}

/* An event of which no record can be made. */
INLINE void count_unreadable(struct box *box, u32 kind)
{
	__sync_fetch_and_add(&box->count[kind & (CAISSON_KIND_MAX - 1)].seen, 1);
	__sync_fetch_and_add(&box->count[kind & (CAISSON_KIND_MAX - 1)].unreadable, 1);
}

/* Counts the event as seen and starts its record in this scratch. */
INLINE void begin_in(struct build *b, struct scratch *scratch, struct box *box, u32 kind, int error)
{
	struct caisson_rec *rec;

	b->box = box;
	b->kind = kind & (CAISSON_KIND_MAX - 1);
	b->scratch = scratch;
	__sync_fetch_and_add(&box->count[b->kind].seen, 1);
	b->scratch->off = sizeof(struct caisson_rec);
	b->scratch->nfields = 0;
	b->scratch->flags = 0;
	b->scratch->partial = 0;
	rec = REC(b);
	rec->kind = kind;
	rec->error = error;
#ifdef CAISSON_FETCH
	rec->seq = __sync_fetch_and_add(&box->seq, 1) + 1;
#else
	rec->seq = 0; /* before 5.12 no program can take a number; the position counts */
#endif
	__builtin_memset(rec->arg, 0, sizeof(rec->arg));
	fill_task(b, (struct task_struct *)bpf_get_current_task());
}

/* The same in the CPU's own scratch. 0: it cannot be made, and is counted so. */
INLINE int begin(struct build *b, struct box *box, u32 kind, int error)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct scratch *scratch = scratches.lookup(&cpu);

	if (!scratch) {
		count_unreadable(box, kind);
		return 0;
	}
	begin_in(b, scratch, box, kind, error);
	return 1;
}

/* Writes a field's head at b->scratch->off; its bytes stand behind it already. */
INLINE void close_field(struct build *b, u32 tag, u32 length, int cut)
{
	*(u64 *)at(b, b->scratch->off) = (u64)length << 32 | (cut ? 1u << 16 : 0) | tag;
	b->scratch->off += 8 + length;
	b->scratch->nfields += 1;
	if (cut)
		b->scratch->flags |= CAISSON_F_TRUNCATED;
}

/*
 * A string in the caller's memory: its bytes with NUL, or not above 0. Older kernels (6.12; not 6.18) give 0 for the empty
 * one, as if there were nothing ("maccess: fix strncpy_from_user_nofault() empty string handling"). Without a branch, which
 * would double the ways behind it: 0 becomes 1, and an error stays one.
 */
INLINE long read_text(void *to, u32 size, const void *from)
{
	long n = bpf_probe_read_user_str(to, size, from), below = n - 1;

	OPAQUE(below);
	return n + ((u64)below >> 63);
}

/* A user string as a field, without its NUL. Returns its length with NUL, or 0 when it could not be read. */
INLINE u32 add_user_string(struct build *b, u32 tag, const void *from)
{
	long n = read_text(at(b, b->scratch->off + 8), PATH_READ, from);

	if (n <= 0 || n > PATH_READ) {
		b->scratch->partial = 1;
		return 0;
	}
	close_field(b, tag, n - 1, n == PATH_READ);
	return n;
}

INLINE void add_kernel_string(struct build *b, u32 tag, const void *from, u32 bound)
{
	long n = bpf_probe_read_kernel_str(at(b, b->scratch->off + 8), bound, from);

	if (n <= 0 || n > bound) {
		b->scratch->partial = 1;
		return;
	}
	close_field(b, tag, n - 1, n == bound);
}

/*
 * The kernel wakes the daemon with the first record after it has caught up, and the daemon then waits a little so that
 * one wake-up serves many records. Past half of the ring every record wakes it, so that it stops waiting.
 */
INLINE u64 ring_wakeup(void *ring)
{
	u64 used = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA), all = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);

	return used > all / 2 ? BPF_RB_FORCE_WAKEUP : 0;
}

/* Pads, counts and sends. */
INLINE void finish(struct build *b)
{
	struct class_count *count = &b->box->count[b->kind];
	struct caisson_rec *rec = REC(b);
	u64 size = b->scratch->off; /* 64 bits wide, so that the compared register is the used one */
	u64 slot;
	void *ring;

	OPAQUE(size);
	if (size > BODY + ARGV_MAX)
		size = BODY + ARGV_MAX;
	*(u64 *)&b->scratch->data[size] = 0;
	size = (size + 7) & ~7ull;
	rec->size = size;
	rec->nfields = b->scratch->nfields;
	rec->flags = b->scratch->flags;
	slot = b->box->ring;
	ring = rings.lookup(&slot);
	if (!ring)
		__sync_fetch_and_add(&count->dropped_map, 1);
	else if (bpf_ringbuf_output(ring, rec, size, ring_wakeup(ring)))
		__sync_fetch_and_add(&count->dropped_ring, 1);
	else {
		__sync_fetch_and_add(&count->delivered, 1);
		if (b->scratch->partial)
			__sync_fetch_and_add(&count->partial, 1);
	}
}
