/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The two ends of every system call. The number's rule is looked at before anything else: the programs run for each
 * call of the whole host, and nearly all of them are none of our business. The end of a call is recorded by the program
 * of its stage.
 */
#pragma once

INLINE void keep_path(struct large_call *call, u64 path)
{
	long n = read_text(call->bytes, PATH_READ, (void *)path);

	call->head.length = n > 0 ? n : 0;
	call->head.user = path;
}

INLINE void keep_second(struct large_call *call, u64 path)
{
	u32 off = (call->head.length + 7) & (LARGE_PATH - 8);
	long n = read_text(&call->bytes[off], PATH_READ, (void *)path);

	call->head.second = n > 0 ? n : 0;
}

INLINE void keep_address(struct large_call *call, u64 address, u64 length)
{
	length = (u32)length;
	OPAQUE(length);
	if (length > ADDR_BYTES)
		length = ADDR_BYTES;
	call->head.length = bpf_probe_read_user(call->bytes, length, (void *)address) ? 0 : length;
}

/* The rule in force for this call, or 0. ``compat``: a 32-bit call. */
INLINE u64 rule_for(struct rule *rule, int *compat)
{
	*compat = task_is_compat() ? 1 : 0;
	return *compat ? rule->word[1] : rule->word[0];
}

INLINE int is_unwanted(u64 rule, struct box *box)
{
	return !rule || (RULE_KIND(rule) == CAISSON_LOOK && !(box->flags & BOX_LOOK));
}

/* TP_PROTO(struct pt_regs *regs, long id) */
RAW_TRACEPOINT_PROBE(sys_enter)
{
	u32 nr = (u32)ctx->args[1] & ~X32_BIT, cpu;
	struct rule *both = rules.lookup(&nr);
	struct large_call *keep;
	struct scratch *scratch;
	u64 arg[8] = {}, name = 0, rule;
	struct box *box;
	u32 length = 0;
	int compat;

	if (!both || !((both->word[0] | both->word[1]) & RULE_ENTRY))
		return 0;
	if (!(both->word[0] & RULE_ENTRY) && !task_is_compat())
		return 0;
	box = current_box();
	if (!box)
		return 0;
	rule = rule_for(both, &compat);
	if (!(rule & RULE_ENTRY) || is_unwanted(rule, box))
		return 0;
	cpu = bpf_get_smp_processor_id();
	keep = call_scratches.lookup(&cpu);
	scratch = scratches.lookup(&cpu);
	if (!keep || !scratch)
		return 0;
	call_args(arg, (struct pt_regs *)ctx->args[0], compat);
	keep->head.nr = nr;
	keep->head.length = 0;
	keep->head.second = 0;
	keep->head.fd = 0;
	keep->head.user = 0;
	keep->head.call = CALL_OTHER;
	keep->head.told = 0;
	keep->head.changed = 0;
	__builtin_memset(keep->head.arg, 0, sizeof(keep->head.arg));
	if (RULE_SPECIAL(rule) == SPECIAL_SOCKETCALL) {
		u32 inner[6] = {};

		nr = socketcall_number((u32)arg[0]);
		both = rules.lookup(&nr);
		if (!nr || !both)
			return 0;
		bpf_probe_read_user(inner, sizeof(inner), (void *)arg[1]);
#pragma unroll
		for (int i = 0; i < 6; i++)
			keep->head.arg[i] = arg[i] = inner[i];
		keep->head.nr = nr;
		rule = both->word[0];
	}
	/* An argument whose number is data is taken from memory: on the stack the verifier does not follow it. */
#pragma unroll
	for (int i = 0; i < 8; i++)
		scratch->now.arg[i] = arg[i];
	switch (RULE_SPECIAL(rule)) {
	case SPECIAL_CREAT:
		keep->head.arg[0] = 01 | 0100 | 01000; /* O_WRONLY, O_CREAT, O_TRUNC */
		keep->head.arg[1] = (u32)arg[1];
		break;
	case SPECIAL_OPENAT2:
		if (!bpf_probe_read_user(&keep->head.arg[0], 24, (void *)arg[2]))
			keep->head.arg[1] = (u32)keep->head.arg[1] | keep->head.arg[2] << 32;
		keep->head.arg[2] = 0;
		break;
	case SPECIAL_FORK:
		keep->head.arg[0] = 17; /* SIGCHLD */
		break;
	case SPECIAL_VFORK:
		keep->head.arg[0] = 17 | 0x4000 | 0x100; /* SIGCHLD, CLONE_VFORK, CLONE_VM */
		break;
	case SPECIAL_CLONE:
		keep->head.arg[0] = arg[0];
		break;
	case SPECIAL_CLONE3:
		bpf_probe_read_user(&keep->head.arg[0], 8, (void *)arg[0]);
		break;
	case SPECIAL_SENDTO:
		if (arg[4])
			keep_address(keep, arg[4], arg[5]);
		else if (!compat)
			return 0;
		break;
	case SPECIAL_MESSAGE:
	case SPECIAL_MESSAGES: /* struct mmsghdr begins with the message */
		if (RULE_STAGE(rule) == STAGE_SEND) {
			read_message_name(arg[1], compat, &name, &length);
			if (name)
				keep_address(keep, name, length);
			else if (RULE_SPECIAL(rule) == SPECIAL_MESSAGE && !compat)
				return 0;
		}
		break;
	default:
		break;
	}
	if (rule & RULE_ADDRESS) {
		if (RULE_STAGE(rule) != STAGE_SEND)
			keep_address(keep, arg[1], arg[2]);
		if (RULE_STAGE(rule) == STAGE_CONNECT)
			keep->head.call = CALL_CONNECT;
	} else if (RULE_PATH(rule) != NOWHERE) {
		keep_path(keep, scratch->now.arg[RULE_PATH(rule)]);
		if (RULE_NEW(rule) != NOWHERE)
			keep_second(keep, scratch->now.arg[RULE_NEW(rule)]);
		if (RULE_STAGE(rule) == STAGE_OPEN) {
			keep->head.call = CALL_OPEN;
			if (RULE_SPECIAL(rule) == SPECIAL_NONE) {
				keep->head.arg[0] = (u32)scratch->now.arg[RULE_V1(rule)];
				keep->head.arg[1] = (u32)scratch->now.arg[RULE_V2(rule)];
			}
		} else if (RULE_STAGE(rule) == STAGE_EXEC)
			keep->head.call = CALL_EXECVE;
		else if (RULE_KIND(rule) == CAISSON_CHANGE)
			keep->head.call = CALL_CHANGE;
	}
	keep_call(keep);
	return 0;
}

#define PROT_WRITE 2
#define MAP_SHARED 1 /* also bit 0 of MAP_SHARED_VALIDATE */
#define MAP_ANONYMOUS 0x20
#define NOTIFY_ADDFD 0x40182103u /* SECCOMP_IOCTL_NOTIF_ADDFD */

/* A process that stood at the gate and has not become the box's command yet: the last rights it gives up are our doing. */
INLINE int is_launcher(struct box *box)
{
	u32 pid = bpf_get_current_pid_tgid() >> 32;

	return !(box->flags & BOX_ATTACHED) && !members.lookup(&pid);
}

/* Calls that matter only with certain arguments. */
INLINE int is_noise(u64 rule, u64 arg[8], long ret)
{
	u32 what = arg[0];

	switch (RULE_SPECIAL(rule)) {
	case SPECIAL_MMAP:
		return !(arg[2] & PROT_WRITE) || !(arg[3] & MAP_SHARED) || (arg[3] & MAP_ANONYMOUS);
	case SPECIAL_IOCTL:
		return (u32)arg[1] != NOTIFY_ADDFD;
	case SPECIAL_PRCTL: /* SET_NAME, SET_SECCOMP, SET_SECUREBITS, SET_MM, SET_CHILD_SUBREAPER, SET_PTRACER */
		return what != 15 && what != 22 && what != 28 && what != 35 && what != 36 && what != 0x59616d61;
	case SPECIAL_PTRACE: /* TRACEME, POKE*, SETREGS, ATTACH, SETREGSET, SEIZE */
		return what != 0 && what != 4 && what != 5 && what != 6 && what != 13 && what != 16 && what != 0x4205 &&
		       what != 0x4206;
	case SPECIAL_SETSOCKOPT: /* SOL_SOCKET: SO_MARK, SO_BINDTODEVICE */
		return (u32)arg[1] != 1 || ((u32)arg[2] != 36 && (u32)arg[2] != 25);
	case SPECIAL_SENDTO:
		return !arg[4];
	case SPECIAL_MESSAGE:
	case SPECIAL_MESSAGES:
		return RULE_STAGE(rule) == STAGE_RECEIVE && ret < 0;
	}
	return 0;
}

/* TP_PROTO(struct pt_regs *regs, long ret) */
RAW_TRACEPOINT_PROBE(sys_exit)
{
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	long ret = ctx->args[1];
	u64 whole = 0, arg[8] = {}, rule;
	struct call_head *head;
	struct scratch *scratch;
	u32 nr, cpu, tid;
	struct rule *both;
	struct box *box = 0;
	struct now *now;
	int compat;

	READ(whole, pt_regs, regs, orig_ax);
	nr = (u32)whole & ~X32_BIT;
	both = rules.lookup(&nr);
	if (!both || !(both->word[0] | both->word[1]))
		return 0;
	if (!both->word[0] && !task_is_compat())
		return 0;
	tid = bpf_get_current_pid_tgid();
	rule = rule_for(both, &compat);
	/* What was kept at entry was in a box and wanted, and its program looks for the box again. */
	if (!(rule & RULE_ENTRY) || RULE_KIND(rule) == CAISSON_CROSS || RULE_SPECIAL(rule) == SPECIAL_SOCKETCALL ||
	    !small_of(tid)) {
		box = current_box();
		if (!box || is_unwanted(rule, box))
			return 0;
	}
	cpu = bpf_get_smp_processor_id();
	scratch = scratches.lookup(&cpu);
	if (!scratch)
		return 0;
	now = &scratch->now;
	call_args(arg, regs, compat);
	now->key = rule & RULE_ENTRY ? tid : 0;
	now->flags = 0;
	if (RULE_SPECIAL(rule) == SPECIAL_SOCKETCALL) {
		head = head_of(tid);
		if (!head)
			return 0;
		nr = head->nr;
#pragma unroll
		for (int i = 0; i < 6; i++)
			arg[i] = head->arg[i];
		both = rules.lookup(&nr);
		if (!both)
			return 0;
		rule = both->word[0];
	}
	if (RULE_STAGE(rule) == STAGE_NONE || is_noise(rule, arg, ret) || (RULE_STAGE(rule) == STAGE_EXEC && ret >= 0) ||
	    (RULE_KIND(rule) == CAISSON_CROSS && box && is_launcher(box))) {
		forget_call(now);
		return 0;
	}
	now->rule = rule;
	now->nr = nr;
	now->compat = compat;
	now->ret = ret;
	now->file = 0;
	now->next = 0;
	now->control = now->length = now->offset = 0;
	now->item = now->passed = 0;
#pragma unroll
	for (int i = 0; i < 8; i++)
		now->arg[i] = arg[i];
	stages.call(ctx, RULE_STAGE(rule));
	box = current_box();
	if (box)
		count_unreadable(box, RULE_KIND(rule)); /* that program is not there */
	forget_call(now);
	return 0;
}
