/* SPDX-License-Identifier: GPL-2.0-only */
/* open: what was asked for at entry, what was asked for at exit, and what was opened. */
#pragma once

/* The strings differ: someone rewrote the path while the kernel read it. */
INLINE int differs(const char *first, u8 *second, u32 length, u32 bound)
{
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < bound / 8; i++) {
		u64 a, c;
		u32 left;

		if (i * 8 >= length)
			return 0;
		a = *(u64 *)&first[i * 8];
		c = *(u64 *)&second[i * 8];
		left = length - i * 8;
		if (left < 8) {
			a <<= (8 - left) * 8;
			c <<= (8 - left) * 8;
		}
		if (a != c)
			return 1;
	}
	return 0;
}

/*
 * Adds both views of the path. The entry view is what DESIGN calls forgeable, the exit view as well; that they agree
 * makes it unlikely, and the resolved object is beyond the caller's reach.
 */
INLINE void add_given(struct build *b, const char *entry, u32 bound, u32 length, const void *user)
{
	u32 first = b->scratch->off + 8, n;
	u64 copied = length ? length - 1 : 0;

	if (entry && length) {
		OPAQUE(copied);
		if (copied > bound - 1)
			copied = bound - 1;
		bpf_probe_read_kernel(at(b, first), copied, entry);
		close_field(b, CAISSON_T_GIVEN, copied, length == PATH_READ);
	}
	n = bpf_probe_read_user_str(at(b, b->scratch->off + 8), PATH_READ, user);
	if ((int)n <= 0 || n > PATH_READ) {
		if (!entry || !length)
			b->scratch->partial = 1;
		return;
	}
	if (entry && length) {
		if (n == length && !differs(entry, at(b, b->scratch->off + 8), n, bound))
			return;
		b->scratch->flags |= CAISSON_F_TOCTOU;
	}
	close_field(b, CAISSON_T_GIVEN_EXIT, n - 1, n == PATH_READ);
}

INLINE void record_open(struct box *box, s64 dirfd, u64 path, u32 nr, int compat, long ret)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct small_call *small = small_calls.lookup(&tid);
	struct large_call *large = 0;
	struct call_head *head = 0;
	struct build build, *b = &build;
	struct caisson_rec *rec;

#ifdef CAISSON_HOOK_OPEN
	if (small ? small->head.told : ret >= 0)
		return; /* told inside the call */
#endif
	if (!begin(b, box, CAISSON_OPEN, ret < 0 ? -ret : 0))
		return;
	if (small) {
		head = &small->head;
		if (head->length > SMALL_PATH)
			large = large_calls.lookup(&tid);
	} else
		b->scratch->flags |= CAISSON_F_NO_ENTRY;
	rec = REC(b);
	rec->arg[0] = dirfd;
	if (head) {
		rec->arg[1] = head->arg[0];
		rec->arg[2] = head->arg[1];
	}
	rec->arg[5] = nr;
	if (compat)
		b->scratch->flags |= CAISSON_F_COMPAT32;
	if (large)
		add_given(b, large->bytes, sizeof(large->bytes), large->head.length, (void *)path);
	else if (small && small->head.length <= SMALL_PATH)
		add_given(b, small->bytes, SMALL_PATH, small->head.length, (void *)path);
	else {
		if (small)
			b->scratch->flags |= CAISSON_F_NO_ENTRY;
		add_given(b, 0, SMALL_PATH, 0, (void *)path);
	}
	if (ret >= 0) {
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();
		struct file *file = file_of(ret);
		struct place place = {};
		struct object object = {};
		struct inode *inode = 0;

		if (file) {
			b->scratch->partial |= READ_PLACE(place, file, file, f_path);
			b->scratch->partial |= READ(inode, file, file, f_inode);
			read_object(b, &object, inode, place.dentry);
			rec->arg[3] = object.dev;
			rec->arg[4] = object.ino;
			add_walk(b, CAISSON_T_WALK, place, task);
		} else
			b->scratch->flags |= CAISSON_F_UNRESOLVED;
	}
	finish(b);
}
