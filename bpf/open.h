/* SPDX-License-Identifier: GPL-2.0-only */
/* open: what was asked for at entry, what was asked for at exit, and what was opened. */
#pragma once

int stage_open(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct file *file = 0;
	struct call_head *head;
	struct caisson_rec *rec;
	u64 rule, length = 0;
	s64 dirfd = AT_FDCWD;
	u32 given;
	long ret;

	if (!box || !now)
		return 0;
	ret = now->ret;
	rule = now->rule;
#ifdef CAISSON_HOOK_OPEN
	struct call_head *told = head_of(now->key);

	/* a request of io_uring that the hook has told was forgotten there */
	if (!(now->flags & CAISSON_F_IO_URING) && (told ? told->told : ret >= 0)) {
		forget_call(now);
		return 0; /* told inside the call */
	}
#endif
	if (!begin(b, box, CAISSON_OPEN, ret < 0 ? -ret : 0))
		return 0;
	head = kept_call(b, now);
	add_call_flags(b, now, head);
	rec = REC(b);
	if (RULE_DIR(rule) != NOWHERE)
		dirfd = (s32)now->arg[RULE_DIR(rule)];
	rec->arg[0] = dirfd;
	if (now->flags & CAISSON_F_IO_URING) {
		rec->arg[1] = now->arg[2];
		rec->arg[2] = now->arg[3];
	} else if (head) {
		rec->arg[1] = head->arg[0];
		rec->arg[2] = head->arg[1];
	}
	if (head)
		length = head->length;
	rec->arg[5] = now->nr;
	given = b->scratch->off;
	add_views(b, CAISSON_T_GIVEN, CAISSON_T_GIVEN_EXIT, b->scratch->kept, length, now->arg[RULE_PATH(rule)]);
	if (now->file)
		file = (struct file *)now->file;
	else if (ret >= 0 && !(now->flags & (CAISSON_F_PENDING | CAISSON_F_DIRECT)))
		file = file_of(ret);
	if (file) {
		struct place place = {};
		struct object object = {};
		struct inode *inode = 0;

		b->scratch->partial |= READ_PLACE(place, file, file, f_path);
		b->scratch->partial |= READ(inode, file, file, f_inode);
		read_object(b, &object, inode, place.dentry);
		rec->arg[3] = object.dev;
		rec->arg[4] = object.ino;
		add_walk(b, CAISSON_T_WALK, place, task);
	} else {
		if (ret >= 0)
			b->scratch->flags |= CAISSON_F_UNRESOLVED;
		if (is_relative(b, given))
			add_base(b, CAISSON_T_CWD_WALK, dirfd);
	}
	finish(b);
	forget_call(now);
	return 0;
}
