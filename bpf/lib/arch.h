/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Registers of a call. x86-64 has two other number spaces: int $0x80 (TS_COMPAT, its own numbers and registers) and x32
 * (bit 30 of the number). The numbers overlap, so each has two rules, and the task says which is meant.
 */
#pragma once

#ifndef CAISSON_X86_64
#error "only x86-64 is supported"
#endif

#define X32_BIT 0x40000000u
#define TASK_COMPAT 0x0002        /* TS_COMPAT in thread_info.status */

/* What the hooks of the trampoline tier must know of the call they run in. */
enum call { CALL_OTHER, CALL_OPEN, CALL_EXECVE, CALL_CONNECT, CALL_CHANGE };

INLINE int task_is_compat(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	u32 status = 0;

	READ(status, task_struct, task, thread_info__status);
	return status & TASK_COMPAT;
}

/* Of struct pt_regs, from bp to di: all that holds an argument. */
#define REGISTERS 11
#define REGISTER(offset) word[((offset) - OFFSET(pt_regs, bp)) / 8]

/* The call's arguments; pt_regs keeps them until the return to user space. */
INLINE void call_args(u64 arg[6], struct pt_regs *regs, int compat)
{
	u64 word[REGISTERS];

	_Static_assert(OFFSET(pt_regs, di) - OFFSET(pt_regs, bp) == (REGISTERS - 1) * 8, "registers");
	bpf_probe_read_kernel(word, sizeof(word), (void *)((u64)regs + OFFSET(pt_regs, bp)));
	if (compat) {
		arg[0] = (u32)REGISTER(OFFSET(pt_regs, bx));
		arg[1] = (u32)REGISTER(OFFSET(pt_regs, cx));
		arg[2] = (u32)REGISTER(OFFSET(pt_regs, dx));
		arg[3] = (u32)REGISTER(OFFSET(pt_regs, si));
		arg[4] = (u32)REGISTER(OFFSET(pt_regs, di));
		arg[5] = (u32)REGISTER(OFFSET(pt_regs, bp));
	} else {
		arg[0] = REGISTER(OFFSET(pt_regs, di));
		arg[1] = REGISTER(OFFSET(pt_regs, si));
		arg[2] = REGISTER(OFFSET(pt_regs, dx));
		arg[3] = REGISTER(OFFSET(pt_regs, r10));
		arg[4] = REGISTER(OFFSET(pt_regs, r8));
		arg[5] = REGISTER(OFFSET(pt_regs, r9));
	}
}

/* The 64-bit number of a call that 32-bit programs make through socketcall; 0: none that is watched. */
INLINE u32 socketcall_number(u64 which)
{
	switch (which) {
	case 1: return 41;   /* socket */
	case 2: return 49;   /* bind */
	case 3: return 42;   /* connect */
	case 4: return 50;   /* listen */
	case 5: return 43;   /* accept */
	case 11: return 44;  /* sendto */
	case 14: return 54;  /* setsockopt */
	case 16: return 46;  /* sendmsg */
	case 17: return 47;  /* recvmsg */
	case 18: return 288; /* accept4 */
	case 19: return 299; /* recvmmsg */
	case 20: return 307; /* sendmmsg */
	}
	return 0;
}
