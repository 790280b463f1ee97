/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The trampoline tier: hooks inside the calls, beside the tracepoints at their ends. What they see is the kernel's own: the name
 * as the kernel copied it, the address as the kernel copied it, the file the kernel opened. Nothing there can be rewritten
 * by a second thread, and calls that never were system calls (io_uring) pass there too.
 *
 * Each hook exists only when the loader has seen it work on this kernel (CAISSON_HOOK_*). An event has one record: an open is
 * told by the hook, and the end of the call tells only what did not get that far (`told`); of a refused exec and of a
 * connect the hook replaces what was read at entry by the kernel's copy, and the end of the call tells it.
 *
 * These programs may be preempted on kernels with full preemption, so their scratch is claimed, not owned by the CPU.
 */
#pragma once

#define PF_IO_WORKER 0x00000010 /* threads of io_uring: workers and the polling one */
#define HOOK_SLOTS 4 /* tries, each with memory of its own: programs of so many tasks preempted on one CPU */

/* The hook's n-th word: an argument, or behind them the result. Read as a number, so that it is one for the verifier. */
#define HOOK_ARG(n)                                                          \
	({                                                                   \
		u64 word = 0;                                                \
		bpf_probe_read_kernel(&word, sizeof(word), &ctx[n]);         \
		word;                                                        \
	})

struct hook_scratch {
	u64 busy;
	struct scratch scratch;
};

BPF_ARRAY(hook_scratches, struct hook_scratch, CAISSON_CPUS * HOOK_SLOTS);

INLINE struct hook_scratch *claim_scratch(void)
{
	u32 key = bpf_get_smp_processor_id();

#pragma unroll
	for (int i = 0; i < HOOK_SLOTS; i++) {
		struct hook_scratch *held = hook_scratches.lookup(&key);

		if (!held)
			return 0;
#ifdef CAISSON_FETCH
		if (__sync_val_compare_and_swap(&held->busy, 0, 1) == 0)
			return held;
#else
		return held; /* kernels that old are not preempted here */
#endif
		key += CAISSON_CPUS;
	}
	return 0;
}

INLINE void release_scratch(struct hook_scratch *held)
{
	*(volatile u64 *)&held->busy = 0;
}

INLINE int is_open_call(u32 call)
{
	return call == CALL_OPEN;
}

INLINE int is_exec_call(u32 call)
{
	return call == CALL_EXECVE;
}

#ifdef CAISSON_HOOK_OPEN
/* The kernel's copy of the name, and what stands in the caller's memory now. They differ: it was rewritten. */
INLINE void add_kernel_given(struct build *b, const char *name, const void *user)
{
	u32 first = b->scratch->off + 8;
	long n = bpf_probe_read_kernel_str(at(b, first), PATH_READ, name), m;

	if (n <= 0 || n > PATH_READ) {
		b->scratch->partial = 1;
		return;
	}
	close_field(b, CAISSON_T_GIVEN, n - 1, n == PATH_READ);
	if (!user)
		return;
	m = read_text(at(b, b->scratch->off + 8), PATH_READ, user);
	if (m <= 0 || m > PATH_READ)
		return;
	if (m == n && !views_differ(b, first, b->scratch->off + 8, n))
		return;
	b->scratch->flags |= CAISSON_F_TOCTOU;
	close_field(b, CAISSON_T_GIVEN_EXIT, m - 1, m == PATH_READ);
}

/* What the request asked for beside what comes this far; it is told now, and its completion has nothing to add. */
INLINE void add_ring_open(struct build *b, struct filename *name)
{
#ifdef CAISSON_URING
	u64 key = (u64)name, request;
	struct ring_open *asked = ring_opens.lookup(&key);

	if (!asked)
		return;
	REC(b)->arg[2] = asked->mode;
	REC(b)->arg[5] = asked->opcode;
	b->scratch->flags |= asked->flags;
	request = asked->request;
	large_calls.delete(&request);
	ring_opens.delete(&key);
#endif
}

/* A refused exec is told by the end of its call; from here on with the kernel's copy of the name. */
INLINE void keep_exec_name(struct small_call *small, struct hook_scratch *held, u32 tid, const char *name)
{
	struct large_call *large = (struct large_call *)held->scratch.data;
	long n = bpf_probe_read_kernel_str(large->bytes, PATH_READ, name);
	u64 key = tid;

	if (n <= 0 || n > PATH_READ)
		return;
	if (n <= SMALL_PATH)
		bpf_probe_read_kernel_str(small->bytes, SMALL_PATH, name);
	else {
		large->head = small->head;
		large->head.length = n;
		large->head.told = 1;
		if (large_calls.update(&key, large))
			return;
	}
	small->head.length = n;
	small->head.told = 1;
}

INLINE void record_hooked_open(struct hook_scratch *held, struct box *box, struct small_call *call, s32 dirfd,
			       struct filename *name, struct open_flags *how, s64 result)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct build build, *b = &build;
	struct caisson_rec *rec;
	const char *text = 0;
	const void *user = 0;
	int failed = (u64)result >= (u64)-4095;
	u32 given;

	begin_in(b, &held->scratch, box, CAISSON_OPEN, failed ? -result : 0);
	b->scratch->flags |= CAISSON_F_KERNEL;
	rec = REC(b);
	rec->arg[0] = (s64)dirfd;
	if (call) {
		rec->arg[1] = call->head.arg[0];
		rec->arg[2] = call->head.arg[1];
		rec->arg[5] = call->head.nr;
		user = (void *)call->head.user;
		if (task_is_compat())
			b->scratch->flags |= CAISSON_F_COMPAT32;
	} else {
		int flags = 0;
		umode_t mode = 0;

		b->scratch->partial |= READ(flags, open_flags, how, open_flag);
		READ(mode, open_flags, how, mode);
		rec->arg[1] = (u32)flags;
		rec->arg[2] = mode & 07777;
		b->scratch->flags |= CAISSON_F_IO_URING;
		add_ring_open(b, name);
	}
	b->scratch->partial |= READ(text, filename, name, name);
	given = b->scratch->off;
	add_kernel_given(b, text, user);
	if (failed && is_relative(b, given))
		add_base(b, CAISSON_T_CWD_WALK, dirfd);
	if (!failed) {
		struct file *file = (struct file *)result;
		struct place place = {};
		struct object object = {};
		struct inode *inode = 0;

		b->scratch->partial |= READ_PLACE(place, file, file, f_path);
		b->scratch->partial |= READ(inode, file, file, f_inode);
		read_object(b, &object, inode, place.dentry);
		rec->arg[3] = object.dev;
		rec->arg[4] = object.ino;
		add_walk(b, CAISSON_T_WALK, place, task);
	}
	finish(b);
	if (call)
		call->head.told = 1;
}

/* struct file *do_filp_open(int dfd, struct filename *pathname, const struct open_flags *op): below every open there is */
int fexit__open(u64 *ctx)
{
	struct box *box = current_box();
	struct hook_scratch *held;
	struct small_call *call;
	struct filename *name;
	u32 tid;

	if (!box)
		return 0;
	name = (struct filename *)HOOK_ARG(1);
	if ((u64)name >= (u64)-4095)
		return 0; /* from 7.x on it is called with names too that the kernel could not read; the end of the call tells these */
	tid = bpf_get_current_pid_tgid();
	call = small_of(tid);
	if (call && !is_open_call(call->head.call)) {
		if (!is_exec_call(call->head.call))
			call = 0;
		else if (call->head.told)
			return 0; /* the interpreter */
	}
	if (!call) {
		/* No call of this thread opens: io_uring does, inline or in a worker, or the kernel for itself. */
		struct task_struct *task = (struct task_struct *)bpf_get_current_task();
		struct io_uring_task *ring = 0;
		u32 flags = 0;

		READ(ring, task_struct, task, io_uring);
		READ(flags, task_struct, task, flags);
		if (!ring && !(flags & PF_IO_WORKER))
			return 0;
		if ((s64)HOOK_ARG(3) == -11)
			return 0; /* EAGAIN: tried without waiting, and comes again from a worker */
	}
	held = claim_scratch();
	if (!held) {
		if (!call || is_open_call(call->head.call))
			count_unreadable(box, CAISSON_OPEN);
		return 0;
	}
	if (call && is_exec_call(call->head.call)) {
		const char *text = 0;

		READ(text, filename, name, name);
		keep_exec_name(call, held, tid, text);
	} else
		record_hooked_open(held, box, call, HOOK_ARG(0), name, (struct open_flags *)HOOK_ARG(2), HOOK_ARG(3));
	release_scratch(held);
	return 0;
}
#endif

#ifdef CAISSON_HOOK_CONNECT
/* security_socket_connect(struct socket *sock, struct sockaddr *address, int addrlen) */
int security__connect(u64 *ctx)
{
	u64 length, seen[ADDR_BYTES / 8] = {};
	struct small_call *call;
	u32 tid, old;

	if (!current_box())
		return 0;
	tid = bpf_get_current_pid_tgid();
	call = small_of(tid);
	if (!call || call->head.call != CALL_CONNECT)
		return 0;
	length = (u32)HOOK_ARG(2);
	OPAQUE(length);
	if (length > ADDR_BYTES)
		length = ADDR_BYTES;
	if (bpf_probe_read_kernel(seen, length, (void *)HOOK_ARG(1)))
		return 0;
	old = call->head.length;
#pragma unroll
	for (u32 i = 0; i < ADDR_BYTES / 8; i++) {
		u64 before = *(u64 *)&call->bytes[i * 8];

		if (i * 8 + 8 <= length && i * 8 + 8 <= old && before != seen[i])
			call->head.changed = 1;
	}
	bpf_probe_read_kernel(call->bytes, ADDR_BYTES, seen);
	call->head.length = length;
	call->head.told = 1;
	return 0;
}
#endif
