/* SPDX-License-Identifier: GPL-2.0-only */
/* exec: a successful one is told by sched_process_exec, a refused one by the end of the call. */
#pragma once

INLINE void add_cwd(struct build *b, struct task_struct *task)
{
	struct fs_struct *fs = 0;
	struct place cwd = {};
	u32 before = b->scratch->flags;

	b->scratch->partial |= READ(fs, task_struct, task, fs);
	b->scratch->partial |= READ_PLACE(cwd, fs_struct, fs, pwd);
	add_walk(b, CAISSON_T_CWD_WALK, cwd, task);
	/* UNRESOLVED speaks of the object, not of the folder it was asked from. */
	b->scratch->flags = (b->scratch->flags & ~CAISSON_F_UNRESOLVED) | (before & CAISSON_F_UNRESOLVED);
}

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
	struct box *box = current_box();
	struct build build, *b = &build;
	struct caisson_rec *rec;
	struct place place = {};
	struct object object = {};
	const char *filename = 0, *interp = 0;
	struct mm_struct *mm = 0;
	struct file *file = 0;
	struct inode *inode = 0;
	int argc = 0;

	if (!box)
		return 0;
	/* The caller may have been another thread; it has this one's number now. */
	small_calls.delete(&old);
	large_calls.delete(&old);
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
	add_cwd(b, task);
	add_argv(b, mm);
	finish(b);
	return 0;
}

INLINE void record_exec_failed(struct box *box, u64 path, int compat, long ret)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct small_call *small = small_calls.lookup(&tid);
	struct large_call *large = 0;
	struct build build, *b = &build;

	if (!begin(b, box, CAISSON_EXEC, -ret))
		return;
	REC(b)->arg[4] = tid;
	if (small && small->head.told)
		b->scratch->flags |= CAISSON_F_KERNEL;
	if (compat)
		b->scratch->flags |= CAISSON_F_COMPAT32;
	if (small && small->head.length > SMALL_PATH)
		large = large_calls.lookup(&tid);
	if (large)
		add_given(b, large->bytes, sizeof(large->bytes), large->head.length, (void *)path);
	else if (small && small->head.length <= SMALL_PATH)
		add_given(b, small->bytes, SMALL_PATH, small->head.length, (void *)path);
	else {
		b->scratch->flags |= CAISSON_F_NO_ENTRY;
		add_given(b, 0, SMALL_PATH, 0, (void *)path);
	}
	add_cwd(b, (struct task_struct *)bpf_get_current_task());
	finish(b);
}
