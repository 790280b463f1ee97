/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * System call numbers and registers. x86-64 with its two other number spaces: int $0x80 (TS_COMPAT, its own numbers
 * and registers) and x32 (bit 30 of the number). The numbers overlap, so a number that means something else in
 * the other space is believed only after a look at the task.
 */
#pragma once

#ifndef CAISSON_X86_64
#error "only x86-64 is supported"
#endif

#define X32_BIT 0x40000000u
#define TASK_COMPAT 0x0002        /* TS_COMPAT in thread_info.status */

enum call {
	CALL_NONE,
	CALL_OPEN,      /* path, flags, mode */
	CALL_CREAT,     /* path, mode */
	CALL_OPENAT,    /* dirfd, path, flags, mode */
	CALL_OPENAT2,   /* dirfd, path, how, size */
	CALL_EXECVE,    /* path, argv, envp */
	CALL_EXECVEAT,  /* dirfd, path, argv, envp, flags */
	CALL_CONNECT,   /* fd, address, length */
	CALL_SOCKETCALL,/* 3 = connect, pointer to its arguments */
	CALL_FORK,
	CALL_VFORK,
	CALL_CLONE,     /* flags */
	CALL_CLONE3     /* struct clone_args, flags first */
};

INLINE int task_is_compat(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	u32 status = 0;

	READ(status, task_struct, task, thread_info__status);
	return status & TASK_COMPAT;
}

/* Which watched call this is. Compares numbers only, but for the few that must be told apart. */
INLINE enum call which_call(u32 nr, int *compat)
{
	*compat = 0;
	switch (nr & ~X32_BIT) {
	case 257: return CALL_OPENAT;
	case 2: return CALL_OPEN;
	case 59: case 520: return CALL_EXECVE;
	case 42: return CALL_CONNECT;
	case 56: return CALL_CLONE;
	case 435: return (*compat = task_is_compat()), CALL_CLONE3;
	case 57: return CALL_FORK;
	case 58: return CALL_VFORK;
	case 85: return CALL_CREAT;
	case 322: case 545: return CALL_EXECVEAT;
	case 437: return (*compat = task_is_compat()), CALL_OPENAT2; /* one number in both spaces */
	case 5: return (*compat = task_is_compat()) ? CALL_OPEN : CALL_NONE;
	case 8: return (*compat = task_is_compat()) ? CALL_CREAT : CALL_NONE;
	case 11: return (*compat = task_is_compat()) ? CALL_EXECVE : CALL_NONE;
	case 102: return (*compat = task_is_compat()) ? CALL_SOCKETCALL : CALL_NONE;
	case 295: return (*compat = task_is_compat()) ? CALL_OPENAT : CALL_NONE;
	case 358: return (*compat = task_is_compat()) ? CALL_EXECVEAT : CALL_NONE;
	case 362: return (*compat = task_is_compat()) ? CALL_CONNECT : CALL_NONE;
	}
	return CALL_NONE;
}

/* A number believed to be 64-bit, but made through int $0x80, where it means something else (2 = fork, 42 = pipe, …).
 * Asked only inside a box, after the look-up. */
INLINE int number_is_foreign(int compat)
{
	return !compat && task_is_compat();
}

/* The call's arguments; pt_regs keeps them until the return to user space. */
INLINE void call_args(u64 arg[5], struct pt_regs *regs, int compat)
{
	if (compat) {
		READ(arg[0], pt_regs, regs, bx);
		READ(arg[1], pt_regs, regs, cx);
		READ(arg[2], pt_regs, regs, dx);
		READ(arg[3], pt_regs, regs, si);
		READ(arg[4], pt_regs, regs, di);
		arg[0] = (u32)arg[0];
		arg[1] = (u32)arg[1];
		arg[2] = (u32)arg[2];
		arg[3] = (u32)arg[3];
		arg[4] = (u32)arg[4];
	} else {
		READ(arg[0], pt_regs, regs, di);
		READ(arg[1], pt_regs, regs, si);
		READ(arg[2], pt_regs, regs, dx);
		READ(arg[3], pt_regs, regs, r10);
		READ(arg[4], pt_regs, regs, r8);
	}
}
