/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The two ends of every system call. The number is compared before any map is touched: the programs run for each
 * call of the whole host, and nearly all of them are none of our business.
 */
#pragma once

/* Keeps an entry until the call's end. When no slot is free, the end says NO_ENTRY. */
INLINE void keep_call(u32 tid, struct large_call *call)
{
	small_calls.update(&tid, (struct small_call *)call);
	if (call->head.length > SMALL_PATH)
		large_calls.update(&tid, call);
}

INLINE void keep_path(struct large_call *call, const void *path)
{
	long n = bpf_probe_read_user_str(call->bytes, PATH_READ, path);

	call->head.length = n > 0 ? n : 0;
	call->head.user = (u64)path;
}

INLINE void keep_address(struct large_call *call, u64 fd, const void *address, u64 length)
{
	call->head.arg[0] = (u32)fd;
	call->head.arg[1] = length;
	OPAQUE(length);
	if (length > ADDR_BYTES)
		length = ADDR_BYTES;
	call->head.length = bpf_probe_read_user(call->bytes, length, address) ? 0 : length;
}

/* TP_PROTO(struct pt_regs *regs, long id) */
RAW_TRACEPOINT_PROBE(sys_enter)
{
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	u32 nr = ctx->args[1], cpu, tid;
	u64 arg[5] = {}, how[2] = {};
	struct large_call *keep;
	enum call call;
	int compat;

	call = which_call(nr, &compat);
	if (call == CALL_NONE || !current_box() || number_is_foreign(compat))
		return 0;
	cpu = bpf_get_smp_processor_id();
	keep = call_scratches.lookup(&cpu);
	if (!keep)
		return 0;
	tid = bpf_get_current_pid_tgid();
	call_args(arg, regs, compat);
	keep->head.nr = nr;
	keep->head.length = 0;
	keep->head.user = 0;
	keep->head.call = call;
	keep->head.told = 0;
	keep->head.changed = 0;
	__builtin_memset(keep->head.arg, 0, sizeof(keep->head.arg));
	switch (call) {
	case CALL_OPEN:
		keep->head.arg[0] = (u32)arg[1];
		keep->head.arg[1] = (u32)arg[2];
		keep_path(keep, (void *)arg[0]);
		break;
	case CALL_CREAT:
		keep->head.arg[0] = 01 | 0100 | 01000; /* O_WRONLY, O_CREAT, O_TRUNC */
		keep->head.arg[1] = (u32)arg[1];
		keep_path(keep, (void *)arg[0]);
		break;
	case CALL_OPENAT:
		keep->head.arg[0] = (u32)arg[2];
		keep->head.arg[1] = (u32)arg[3];
		keep_path(keep, (void *)arg[1]);
		break;
	case CALL_OPENAT2:
		bpf_probe_read_user(how, sizeof(how), (void *)arg[2]);
		keep->head.arg[0] = how[0];
		keep->head.arg[1] = how[1];
		keep_path(keep, (void *)arg[1]);
		break;
	case CALL_EXECVE:
		keep_path(keep, (void *)arg[0]);
		break;
	case CALL_EXECVEAT:
		keep_path(keep, (void *)arg[1]);
		break;
	case CALL_CONNECT:
		keep_address(keep, arg[0], (void *)arg[1], (u32)arg[2]);
		break;
	case CALL_SOCKETCALL: {
		u32 inner[3] = {};

		if ((u32)arg[0] != 3)
			return 0;
		bpf_probe_read_user(inner, sizeof(inner), (void *)arg[1]);
		keep_address(keep, inner[0], (void *)(u64)inner[1], inner[2]);
		break;
	}
	case CALL_FORK:
		keep->head.arg[0] = 17; /* SIGCHLD */
		break;
	case CALL_VFORK:
		keep->head.arg[0] = 17 | 0x4000 | 0x100; /* SIGCHLD, CLONE_VFORK, CLONE_VM */
		break;
	case CALL_CLONE:
		keep->head.arg[0] = arg[0];
		break;
	case CALL_CLONE3:
		bpf_probe_read_user(&keep->head.arg[0], 8, (void *)arg[0]);
		break;
	default:
		return 0;
	}
	keep_call(tid, keep);
	return 0;
}

#define AT_FDCWD (-100)

/* TP_PROTO(struct pt_regs *regs, long ret) */
RAW_TRACEPOINT_PROBE(sys_exit)
{
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	long ret = ctx->args[1];
	u64 nr = 0, path, second, arg[5] = {};
	s64 dirfd = AT_FDCWD;
	struct box *box;
	enum call call;
	int compat;
	u32 tid;

	READ(nr, pt_regs, regs, orig_ax);
	call = which_call(nr, &compat);
	if (call == CALL_NONE)
		return 0;
	box = current_box();
	if (!box || number_is_foreign(compat))
		return 0;
	call_args(arg, regs, compat);
	path = arg[0];
	second = arg[1];
	OPAQUE(path); /* or clang selects an address on the stack, which the verifier does not follow */
	OPAQUE(second);
	if (call == CALL_OPENAT || call == CALL_OPENAT2) {
		dirfd = (s32)path;
		path = second;
	} else if (call == CALL_EXECVEAT)
		path = second;
	switch (call) {
	case CALL_OPEN:
	case CALL_CREAT:
	case CALL_OPENAT:
	case CALL_OPENAT2:
		record_open(box, dirfd, path, nr, compat, ret);
		break;
	case CALL_EXECVE:
	case CALL_EXECVEAT:
		if (ret < 0)
			record_exec_failed(box, path, compat, ret);
		break;
	case CALL_CONNECT:
		record_connect(box, compat, arg, ret);
		break;
	case CALL_SOCKETCALL:
		if ((u32)arg[0] != 3)
			return 0;
		record_connect(box, compat, arg, ret);
		break;
	default:
		break;
	}
	tid = bpf_get_current_pid_tgid();
	small_calls.delete(&tid);
	large_calls.delete(&tid);
	return 0;
}
