/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Descriptors that came in a message (SCM_RIGHTS). The control data is walked where the kernel left it: in the caller's
 * memory, after the call. One program tells one descriptor with its path and calls itself for the next.
 */
#pragma once

#define LEVEL_SOCKET 1
#define TYPE_RIGHTS 1

/* One step through control data: a descriptor, or -1. ``over`` is set when there is nothing left. */
INLINE s32 step_message(struct now *now, u32 messages, int *over)
{
	u64 head = now->compat ? 12 : 16, length, place;
	u32 word[4] = {}, level, type;
	s32 fd = -1;

	if (now->offset + head > now->length || now->length > 1 << 20) {
		now->next += 1;
		if (now->next >= messages)
			*over = 1;
		else
			open_message(now);
		return -1;
	}
	if (bpf_probe_read_user(word, sizeof(word), (void *)(now->control + now->offset))) {
		now->offset = now->length;
		return -1;
	}
	length = word[0];
	level = now->compat ? word[1] : word[2];
	type = now->compat ? word[2] : word[3];
	place = head + (u64)now->item * 4;
	if (level == LEVEL_SOCKET && type == TYPE_RIGHTS && place + 4 <= length && now->offset + place + 4 <= now->length) {
		bpf_probe_read_user(&fd, 4, (void *)(now->control + now->offset + place));
		now->item += 1;
		return fd;
	}
	now->item = 0;
	if (length < head)
		now->offset = now->length;
	else
		now->offset += now->compat ? (length + 3) & ~3ull : (length + 7) & ~7ull;
	return -1;
}

INLINE void begin_pass(struct build *b, struct now *now, struct object *object, struct place *place, s32 fd)
{
	struct caisson_rec *rec = REC(b);
	struct inode *inode = 0;
	struct file *file = file_of(fd);

	b->scratch->flags |= now->flags | (now->compat ? CAISSON_F_COMPAT32 : 0);
	rec->arg[0] = CAISSON_PASS_MESSAGE;
	rec->arg[1] = (s64)fd;
	rec->arg[2] = now->arg[0];
	if (file) {
		b->scratch->partial |= READ_PLACE(*place, file, file, f_path);
		b->scratch->partial |= READ(inode, file, file, f_inode);
		read_object(b, object, inode, place->dentry);
		rec->arg[3] = object->dev;
		rec->arg[4] = object->ino;
	} else
		b->scratch->flags |= CAISSON_F_UNRESOLVED;
}

int stage_receive(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct object object = {};
	struct place place = {};
	u32 messages;
	int over = 0;
	s32 fd = -1;

	if (!box || !now)
		return 0;
	messages = RULE_SPECIAL(now->rule) == SPECIAL_MESSAGES ? now->ret : 1;
	if (!now->passed)
		open_message(now);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PASS_STEPS; NEXT(i)) {
		LOOP_BEGIN;
		fd = step_message(now, messages, &over);
		if (fd >= 0 || over)
			break;
	}
	if (over) {
		forget_call(now);
		return 0;
	}
	if (fd >= 0) {
		if (!begin(b, box, CAISSON_PASS, 0))
			return 0;
		begin_pass(b, now, &object, &place, fd);
		if (place.dentry)
			add_walk(b, CAISSON_T_WALK, place, task);
		finish(b);
	}
	now->passed += 1;
	if (now->passed < PASSED)
		stages.call(ctx, STAGE_RECEIVE);
	stages.call(ctx, STAGE_REST);
	count_unreadable(box, CAISSON_PASS);
	forget_call(now);
	return 0;
}

/* What one program after the other had no turn left for: descriptors without a path. */
int stage_rest(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	u32 messages;
	int over = 0;

	if (!box || !now)
		return 0;
	messages = RULE_SPECIAL(now->rule) == SPECIAL_MESSAGES ? now->ret : 1;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PASS_REST; NEXT(i)) {
		struct build build, *b = &build;
		struct object object = {};
		struct place place = {};
		s32 fd;

		LOOP_BEGIN;
		fd = step_message(now, messages, &over);
		if (over)
			break;
		if (fd < 0)
			continue;
		if (!begin(b, box, CAISSON_PASS, 0))
			break;
		begin_pass(b, now, &object, &place, fd);
		b->scratch->flags |= CAISSON_F_UNRESOLVED;
		finish(b);
	}
	if (!over) {
		stages.call(ctx, STAGE_REST);
		count_unreadable(box, CAISSON_PASS);
	}
	forget_call(now);
	return 0;
}
