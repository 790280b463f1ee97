/* SPDX-License-Identifier: GPL-2.0-only */
/* exec: a successful one is told by sched_process_exec, a refused one by the end of the call. */
#pragma once

/* The new program's arguments, as they lie in its new memory: one stretch, each closed by a NUL. */
INLINE void add_argv(struct build *b, struct mm_struct *mm)
{
	unsigned long start = 0, end = 0;
	u64 length;
	int cut = 0;

	b->scratch->partial |= READ(start, mm_struct, mm, arg_start);
	b->scratch->partial |= READ(end, mm_struct, mm, arg_end);
	length = end - start;
	OPAQUE(length);
	if (length > ARGV_MAX) {
		length = ARGV_MAX;
		cut = 1;
	}
	if (bpf_probe_read_user(at(b, b->scratch->off + 8), length, (void *)start)) {
		b->scratch->partial = 1;
		b->scratch->flags |= CAISSON_F_TRUNCATED;
		return;
	}
	close_field(b, CAISSON_T_ARGV, length, cut);
}

/* TP_PROTO(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm) */
RAW_TRACEPOINT_PROBE(sched_process_exec)
{
	struct task_struct *task = (struct task_struct *)ctx->args[0];
	u32 old = ctx->args[1];
	struct linux_binprm *bprm = (struct linux_binprm *)ctx->args[2];
	u64 box_id = 0, key = old;
	struct box *box = find_box(&box_id);
	struct build build, *b = &build;
	struct caisson_rec *rec;
	struct place place = {};
	struct object object = {};
	u32 pid = bpf_get_current_pid_tgid() >> 32;
	const char *filename = 0, *interp = 0;
	struct mm_struct *mm = 0;
	struct file *file = 0;
	struct inode *inode = 0;
	int argc = 0;

	if (!box)
		return 0;
	/* The caller may have been another thread; it has this one's number now. */
	let_go(old);
	large_calls.delete(&key);
	members.update(&pid, &box_id);
	if (!begin(b, box, CAISSON_EXEC, 0))
		return 0;
	rec = REC(b);
	b->scratch->partial |= READ(filename, linux_binprm, bprm, filename);
	b->scratch->partial |= READ(interp, linux_binprm, bprm, interp);
	READ(argc, linux_binprm, bprm, argc);
	rec->arg[3] = argc;
	rec->arg[4] = old;
	if (task_is_compat())
		b->scratch->flags |= CAISSON_F_COMPAT32;
	add_kernel_string(b, CAISSON_T_GIVEN, filename, PATH_READ);
	if (interp != filename)
		add_kernel_string(b, CAISSON_T_INTERP, interp, INTERP_READ);
	b->scratch->partial |= READ(mm, task_struct, task, mm);
	b->scratch->partial |= READ(file, mm_struct, mm, exe_file);
	b->scratch->partial |= READ(inode, file, file, f_inode);
	b->scratch->partial |= READ_PLACE(place, file, file, f_path);
	read_object(b, &object, inode, place.dentry);
	rec->arg[0] = object.dev;
	rec->arg[1] = object.ino;
	rec->arg[2] = object.nlink;
	add_walk(b, CAISSON_T_WALK, place, task);
	add_base(b, CAISSON_T_CWD_WALK, AT_FDCWD);
	add_argv(b, mm);
	finish(b);
	return 0;
}

/*
 * What a refused exec was to be given, from the caller's own memory, where the list still stands; bounded, and a flag says
 * when it is cut.
 */
INLINE void add_refused_argv(struct build *b, u64 list, int compat)
{
	struct scratch *s = b->scratch;
	u32 argc = 0;

	s->length = 0;
	s->end = 1;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < REFUSED_ARGC; NEXT(i)) {
		u64 word = 0;
		u32 length;
		long n;

		LOOP_BEGIN;
		length = s->length;
		if (bpf_probe_read_user(&word, compat ? 4 : 8, (void *)(list + (u64)i * (compat ? 4 : 8)))) {
			s->partial = 1;
			break;
		}
		if (!word) {
			s->end = 0;
			break;
		}
		if (length > REFUSED_ALL - REFUSED_ARG)
			break;
		n = read_text(at(b, s->off + 8 + length), REFUSED_ARG, (void *)word);
		if (n <= 0) {
			s->partial = 1;
			break;
		}
		argc = i + 1;
		s->length = length + n;
		if (n == REFUSED_ARG)
			s->flags |= CAISSON_F_TRUNCATED;
	}
	REC(b)->arg[3] = argc;
	close_field(b, CAISSON_T_ARGV, s->length, s->end);
}

int stage_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct call_head *head;
	u64 rule, length = 0;

	if (!box || !now)
		return 0;
	rule = now->rule;
	if (!begin(b, box, CAISSON_EXEC, -now->ret))
		return 0;
	REC(b)->arg[4] = (u32)bpf_get_current_pid_tgid();
	head = kept_call(b, now);
	add_call_flags(b, now, head);
	if (head)
		length = head->length;
	add_views(b, CAISSON_T_GIVEN, CAISSON_T_GIVEN_EXIT, b->scratch->kept, length, now->arg[RULE_PATH(rule)]);
	add_base(b, CAISSON_T_CWD_WALK, AT_FDCWD);
	if (now->arg[RULE_V1(rule)])
		add_refused_argv(b, now->arg[RULE_V1(rule)], now->compat);
	finish(b);
	forget_call(now);
	return 0;
}
