/* SPDX-License-Identifier: GPL-2.0-only */
/* fork and exit: the family tree, told by the scheduler and not by parent numbers. */
#pragma once

/* TP_PROTO(struct task_struct *parent, struct task_struct *child); runs in the parent */
RAW_TRACEPOINT_PROBE(sched_process_fork)
{
	struct task_struct *child = (struct task_struct *)ctx->args[1];
	u64 start = 0, box_id = 0;
	struct box *box = find_box(&box_id);
	struct build build, *b = &build;
	struct call_head *call;
	struct caisson_rec *rec;
	u32 tid = bpf_get_current_pid_tgid();
	pid_t pid = 0, thread = 0;
	u32 process;

	if (!box || !begin(b, box, CAISSON_FORK, 0))
		return 0;
	rec = REC(b);
	b->scratch->partial |= READ(pid, task_struct, child, tgid);
	b->scratch->partial |= READ(thread, task_struct, child, pid);
	b->scratch->partial |= READ(start, task_struct, child, start_boottime);
	rec->arg[0] = pid;
	rec->arg[1] = thread;
	rec->arg[2] = start;
	call = head_of(tid);
	if (call)
		rec->arg[3] = call->arg[0];
	process = pid;
	if (pid != thread)
		b->scratch->flags |= CAISSON_F_THREAD;
	else
		members.update(&process, &box_id);
	finish(b);
	return 0;
}

/* TP_PROTO(struct task_struct *p[, bool group_dead]) */
RAW_TRACEPOINT_PROBE(sched_process_exit)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	struct box *box = current_box();
	struct build build, *b = &build;
	struct caisson_rec *rec;
	u64 ids = bpf_get_current_pid_tgid(), key = (u32)ids;
	u32 tid = ids, pid = ids >> 32;
	int code = 0, last;

	if (pid == tid)
		members.delete(&pid); /* also of a process that has left its box */
	let_go(tid); /* likewise */
	if (!box)
		return 0;
	large_calls.delete(&key);
	if (!begin(b, box, CAISSON_EXIT, 0))
		return 0;
#ifdef CAISSON_EXIT_GROUP_DEAD
	last = ctx->args[1] & 1;
#else
	/* Before 6.16 the tracepoint does not say; two threads that end at once may then both be called the last. */
	struct signal_struct *signal = 0;
	int live = 0;

	READ(signal, task_struct, task, signal);
	READ(live, signal_struct, signal, live__counter);
	last = live == 0;
#endif
	rec = REC(b);
	b->scratch->partial |= READ(code, task_struct, task, exit_code);
	rec->arg[0] = code >> 8 & 0xff;
	rec->arg[1] = code & 0x7f;
	rec->arg[2] = code >> 7 & 1;
	if (!last)
		b->scratch->flags |= CAISSON_F_THREAD;
	finish(b);
	return 0;
}
