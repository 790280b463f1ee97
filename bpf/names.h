/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Everything that is told by names and numbers alone: changes, looks, most of the crossings, descriptors made without an
 * open. What belongs to which argument stands in the rule.
 */
#pragma once

#define AT_REMOVEDIR 0x200
#define PR_SET_NAME 15

int stage_names(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct call_head *head;
	struct caisson_rec *rec;
	u32 given;

	if (!box || !now)
		return 0;
	now->kind = RULE_KIND(now->rule);
	if (!begin(b, box, now->kind, now->ret < 0 ? -now->ret : 0))
		return 0;
	rec = REC(b);
	head = kept_call(b, now);
	add_call_flags(b, now, head);
	now->first = now->second = now->relative = 0;
	if (head) {
		now->first = head->length;
		now->second = head->second;
	}
	now->dirfd = now->newdir = AT_FDCWD;
	if (RULE_DIR(now->rule) != NOWHERE)
		now->dirfd = (s32)now->arg[RULE_DIR(now->rule)];
	if (RULE_NEWDIR(now->rule) != NOWHERE)
		now->newdir = (s32)now->arg[RULE_NEWDIR(now->rule)];
	for (int i = 0; i < WALKS; i++)
		now->walk[i].tag = 0;
	rec->arg[0] = RULE_OP(now->rule);
	if (RULE_SPECIAL(now->rule) == SPECIAL_UNLINKAT && (now->arg[2] & AT_REMOVEDIR))
		rec->arg[0] = CAISSON_CHANGE_RMDIR;
	if (now->kind == CAISSON_CROSS) {
		rec->arg[1] = now->nr;
		rec->arg[2] = now->arg[0];
		rec->arg[3] = now->arg[1];
		rec->arg[4] = now->arg[2];
		rec->arg[5] = now->arg[3];
	} else {
		rec->arg[1] = now->dirfd;
		if (RULE_FD(now->rule) != NOWHERE)
			rec->arg[1] = (s64)(s32)now->arg[RULE_FD(now->rule)];
		else if ((now->rule & RULE_RETFD) && RULE_PATH(now->rule) == NOWHERE)
			rec->arg[1] = now->ret;
		rec->arg[2] = now->arg[RULE_V1(now->rule)];
		rec->arg[5] = RULE_NEWDIR(now->rule) != NOWHERE ? (u64)now->newdir : now->arg[RULE_V2(now->rule)];
	}
	if (RULE_PATH(now->rule) != NOWHERE) {
		given = b->scratch->off;
		now->kept = b->scratch->kept;
		if (!now->first && !now->arg[RULE_PATH(now->rule)])
			now->file = (u64)file_of(now->dirfd); /* no path: the descriptor itself is meant */
		else
			add_views(b, CAISSON_T_GIVEN, CAISSON_T_GIVEN_EXIT, b->scratch->kept, now->first,
				  now->arg[RULE_PATH(now->rule)]);
		if (is_empty(b, given))
			now->file = (u64)file_of(now->dirfd);
		else if (!(now->rule & RULE_TEXT) && is_relative(b, given)) {
			leave_folder(b, now, 0, CAISSON_T_CWD_WALK, now->dirfd);
			now->relative = 1;
		}
	}
	stages.call(ctx, STAGE_SECOND);
	give_up(box, now);
	return 0;
}

/* The second name, a third one, and the object. */
int stage_second(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct caisson_rec *rec;
	u64 name;
	u32 given;

	if (!go_on(b, box, now))
		return 0;
	rec = REC(b);
	if (RULE_NEW(now->rule) != NOWHERE) {
		given = b->scratch->off;
		if (now->kept)
			now->kept += (now->first + 7) & ~7u;
		add_views(b, CAISSON_T_NEW, CAISSON_T_NEW_EXIT, now->kept, now->second, now->arg[RULE_NEW(now->rule)]);
		if (is_relative(b, given) && !(now->relative && now->newdir == now->dirfd))
			leave_folder(b, now, 1, CAISSON_T_NEW_CWD_WALK, now->newdir);
	}
	name = now->arg[RULE_NAME(now->rule)];
	if (RULE_SPECIAL(now->rule) == SPECIAL_PRCTL && (u32)now->arg[0] == PR_SET_NAME)
		name = now->arg[1];
	if (name) {
		long n = read_text(at(b, b->scratch->off + 8), NAME_READ, (void *)name);

		if (n > 0 && n <= NAME_READ)
			close_field(b, CAISSON_T_NAME, n - 1, n == NAME_READ);
		else
			b->scratch->partial = 1;
	}
	if (RULE_SPECIAL(now->rule) == SPECIAL_IOCTL) {
		u32 word[6] = {}; /* struct seccomp_notif_addfd: u64 id, u32 flags, srcfd, newfd, newfd_flags */

		bpf_probe_read_user(word, sizeof(word), (void *)now->arg[2]);
		rec->arg[1] = now->ret;
		rec->arg[2] = word[2];
		rec->arg[5] = word[3];
		now->file = (u64)file_of(word[3]);
	} else if (now->flags & (CAISSON_F_DIRECT | CAISSON_F_PENDING))
		; /* no descriptor: the file is known, or it is not */
	else if (RULE_FD(now->rule) != NOWHERE)
		now->file = (u64)file_of(now->arg[RULE_FD(now->rule)]);
	else if (now->rule & RULE_RETFD)
		now->file = now->ret >= 0 ? (u64)file_of(now->ret) : 0;
	if (now->file) {
		struct file *file = (struct file *)now->file;
		struct place place = {};
		struct object object = {};
		struct inode *inode = 0;

		b->scratch->partial |= READ_PLACE(place, file, file, f_path);
		b->scratch->partial |= READ(inode, file, file, f_inode);
		read_object(b, &object, inode, place.dentry);
		if (now->kind != CAISSON_CROSS) {
			rec->arg[3] = object.dev;
			rec->arg[4] = object.ino;
		} else if (rec->arg[0] == CAISSON_CROSS_SETNS) {
			rec->arg[4] = object.dev;
			rec->arg[5] = object.ino;
		}
		leave_walk(now, 2, CAISSON_T_WALK, &place);
	}
	stages.call(ctx, STAGE_WALKS);
	give_up(box, now);
	return 0;
}

/* The end of such a record: its paths. */
int stage_walks(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct place place;
	u32 flags;

	if (!go_on(b, box, now))
		return 0;
#pragma unroll
	for (int i = 0; i < WALKS; i++) {
		if (!now->walk[i].tag)
			continue;
		place.mnt = (struct vfsmount *)now->walk[i].mnt;
		place.dentry = (struct dentry *)now->walk[i].dentry;
		flags = b->scratch->flags;
		add_walk_of(b, now->walk[i].tag, place, task, i < 2);
		if (i < 2) /* UNRESOLVED speaks of the object, not of the folder it was asked from */
			b->scratch->flags = (b->scratch->flags & ~CAISSON_F_UNRESOLVED) | (flags & CAISSON_F_UNRESOLVED);
	}
#ifdef CAISSON_TRAMPOLINE
	if (now->kind == CAISSON_CHANGE && (b->scratch->flags & CAISSON_F_KERNEL) && !now->walk[2].tag)
		add_changed_object(b);
#endif
	finish(b);
	forget_call(now);
	return 0;
}
