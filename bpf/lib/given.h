/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A path as the caller gave it, in two views. The entry view can be forged, the exit view as well; that they agree makes
 * it unlikely, and the resolved object is beyond the caller's reach.
 */
#pragma once

#define AT_FDCWD (-100)

/* Two strings in the record differ: someone rewrote the path while the kernel read it. */
INLINE int views_differ(struct build *b, u32 first, u32 second, u32 length)
{
#pragma clang loop unroll(disable)
	for (u32 word = 0; word < (PATH_READ + 7) / 8; NEXT(word)) {
		u32 i = word * 8, left;
		u64 a, c;

		LOOP_BEGIN;
		if (i >= length)
			return 0;
		a = *(u64 *)at(b, first + i);
		c = *(u64 *)at(b, second + i);
		left = length - i;
		if (left < 8) {
			a <<= (8 - left) * 8;
			c <<= (8 - left) * 8;
		}
		if (a != c)
			return 1;
	}
	return 0;
}

/* ``kept`` is the address of what was kept at entry, ``length`` its bytes with NUL; ``user`` where it stands now. */
INLINE void add_views(struct build *b, u32 tag, u32 exit_tag, u64 kept, u32 length, u64 user)
{
	struct scratch *s = b->scratch;
	u32 first = s->off + 8;
	u64 copied = length ? length - 1 : 0;
	long n;

	if (kept && length) {
		OPAQUE(copied);
		if (copied > PATH_BYTES)
			copied = PATH_BYTES;
		bpf_probe_read_kernel(at(b, first), copied, (void *)kept);
		close_field(b, tag, copied, length == PATH_READ);
	}
	if (!user) {
		if (!kept || !length)
			s->partial = 1;
		return;
	}
	n = read_text(at(b, s->off + 8), PATH_READ, (void *)user);
	if (n <= 0 || n > PATH_READ) {
		if (!kept || !length)
			s->partial = 1;
		return;
	}
	if (kept && length) {
		*at(b, first + length - 1) = 0; /* here the head of the next field will stand */
		if (n == length && !views_differ(b, first, s->off + 8, n))
			return;
		s->flags |= CAISSON_F_TOCTOU;
	}
	close_field(b, exit_tag, n - 1, n == PATH_READ);
}

/* Whether the string whose field began at ``off`` is a relative path; the empty one is not. */
INLINE int is_relative(struct build *b, u32 off)
{
	return b->scratch->off != off && (u32)(*(u64 *)at(b, off) >> 32) && *at(b, off + 8) != '/';
}

INLINE int is_empty(struct build *b, u32 off)
{
	return b->scratch->off != off && !(u32)(*(u64 *)at(b, off) >> 32);
}

/* The folder a relative path starts from: the descriptor's, or the task's working folder. 0: there is none. */
INLINE int folder_of(struct build *b, struct place *place, s64 dirfd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fs_struct *fs = 0;
	struct file *file;

	if ((s32)dirfd == AT_FDCWD) {
		b->scratch->partial |= READ(fs, task_struct, task, fs);
		b->scratch->partial |= READ_PLACE(*place, fs_struct, fs, pwd);
		return 1;
	}
	file = file_of(dirfd);
	if (!file)
		return 0;
	b->scratch->partial |= READ_PLACE(*place, file, file, f_path);
	return 1;
}

INLINE void add_base(struct build *b, u32 tag, s64 dirfd)
{
	struct place place = {};
	u32 flags = b->scratch->flags;

	if (!folder_of(b, &place, dirfd))
		return;
	add_walk_of(b, tag, place, (struct task_struct *)bpf_get_current_task(), 1);
	/* UNRESOLVED speaks of the object, not of the folder it was asked from. */
	b->scratch->flags = (b->scratch->flags & ~CAISSON_F_UNRESOLVED) | (flags & CAISSON_F_UNRESOLVED);
}

/* Leaves a walk to the program that ends the record: three of them in one are too many ways for the verifier. */
INLINE void leave_walk(struct now *now, u32 at, u32 tag, struct place *place)
{
	now->walk[at].mnt = (u64)place->mnt;
	now->walk[at].dentry = (u64)place->dentry;
	now->walk[at].tag = tag;
}

INLINE void leave_folder(struct build *b, struct now *now, u32 at, u32 tag, s64 dirfd)
{
	struct place place = {};

	if (folder_of(b, &place, dirfd))
		leave_walk(now, at, tag, &place);
}

/* Takes up the record that the calling program has begun. */
INLINE int go_on(struct build *b, struct box *box, struct now *now)
{
	u32 cpu = bpf_get_smp_processor_id();

	b->scratch = scratches.lookup(&cpu);
	if (!box || !now || !b->scratch)
		return 0;
	b->box = box;
	b->kind = now->kind & (CAISSON_KIND_MAX - 1);
	return 1;
}

/*
 * What was kept of the call in hand: its head, or 0; the strings' address is left in the scratch. The head is a copy in
 * the scratch: the verifier then need not follow what comes behind once for each place it may have lain in.
 */
INLINE struct call_head *kept_call(struct build *b, struct now *now)
{
	struct scratch *s = b->scratch;
	struct small_call *small;
	struct large_call *large;
	u64 key = now->key;
	u32 tid = key, cpu;

	s->kept = 0;
	if (!key)
		return 0;
	if (now->flags & CAISSON_F_PENDING) { /* told by the program that has just read it */
		cpu = bpf_get_smp_processor_id();
		large = call_scratches.lookup(&cpu);
	} else if (now->flags & CAISSON_F_IO_URING) {
		large = large_calls.lookup(&key);
	} else {
		small = small_of(tid);
		if (small && fits_small(small->head.length, small->head.second)) {
			s->kept = (u64)small->bytes;
			s->head = small->head;
			return &s->head;
		}
		large = large_calls.lookup(&key);
	}
	if (!large)
		return 0;
	s->kept = (u64)large->bytes;
	s->head = large->head;
	return &s->head;
}

/* The call is over. */
INLINE void forget_call(struct now *now)
{
	struct small_call *small;
	u64 key = now->key;
	u32 tid = key;

	if (!key || (now->flags & CAISSON_F_PENDING))
		return;
	if (now->flags & CAISSON_F_IO_URING) {
		large_calls.delete(&key);
		return;
	}
	small = small_of(tid);
	if (!small || !fits_small(small->head.length, small->head.second))
		large_calls.delete(&key);
	let_go(tid);
}

/* The flags every record of a call in hand has. */
INLINE void add_call_flags(struct build *b, struct now *now, struct call_head *head)
{
	b->scratch->flags |= now->flags | (now->compat ? CAISSON_F_COMPAT32 : 0);
	if (!head && (now->rule & RULE_ENTRY))
		b->scratch->flags |= CAISSON_F_NO_ENTRY;
	if (head && head->told)
		b->scratch->flags |= CAISSON_F_KERNEL;
	if (head && head->changed)
		b->scratch->flags |= CAISSON_F_TOCTOU;
}

/* The program that would go on with the record is not there: the event was counted as seen. */
INLINE void give_up(struct box *box, struct now *now)
{
	__sync_fetch_and_add(&box->count[now->kind & (CAISSON_KIND_MAX - 1)].unreadable, 1);
	forget_call(now);
}
