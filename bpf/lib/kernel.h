/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reading the kernel. The layout of a kernel structure is never left to the compiler: bcc compiles with x86's data layout and
 * generates code with BPF's, and where the two differ (in mm_struct of 6.18 by 16 bytes) argv reads as the environment,
 * without a word. Every offset and size is a number from the kernel's BTF, which the loader looks up for each READ and
 * OFFSET it finds here, and it is added as a number: with pointers, LLVM turns the sum back into a member access.
 * READ refuses to compile when the variable is not as large as the member. Members of members are written with two
 * underscores.
 */
#pragma once

#define INLINE static __always_inline

#define OFFSET(type, member) CAISSON_OFFSET_##type##__##member
#define SIZE(type, member) CAISSON_SIZE_##type##__##member

/* dst = ptr->member, through the fault-safe read, which leaves zeros where it cannot read and then returns non-zero.
 * Results are collected with |=, not compared: every branch doubles what the verifier has to follow. */
#define READ(dst, type, ptr, member)                                                                        \
	({                                                                                                  \
		_Static_assert(sizeof(dst) == SIZE(type, member), "size of " #type "." #member);            \
		(u32)bpf_probe_read_kernel(&(dst), sizeof(dst), (void *)((u64)(ptr) + OFFSET(type, member))); \
	})

/*
 * Each read costs a call, so members that lie close together are read at once: into the scratch's span, from ``first`` to
 * ``last``. Where a kernel has them in another order, CLOSE is 0 and they are read one by one.
 */
#define SPAN_WORDS 16
#define CLOSE(type, first, member, last)                                                    \
	(OFFSET(type, member) >= OFFSET(type, first) &&                                     \
	 OFFSET(type, member) + SIZE(type, member) <= OFFSET(type, last) + SIZE(type, last) && \
	 OFFSET(type, last) + SIZE(type, last) - OFFSET(type, first) <= SPAN_WORDS * 8)
#define READ_SPAN(s, type, ptr, first, last)                                                              \
	((u32)bpf_probe_read_kernel((s)->span, OFFSET(type, last) + SIZE(type, last) - OFFSET(type, first), \
				    (void *)((u64)(ptr) + OFFSET(type, first))))
#define IN_SPAN(s, dst, type, first, member)                                                            \
	({                                                                                              \
		_Static_assert(sizeof(dst) == SIZE(type, member), "size of " #type "." #member);        \
		(dst) = *(typeof(dst) *)((u8 *)(s)->span + OFFSET(type, member) - OFFSET(type, first)); \
	})

/*
 * bcc reads all of /proc/kallsyms, a second of work, when it meets the two helpers under its own names: it wants to know
 * whether the kernel has them. It has; the loader asks for 5.10.
 */
static int (*read_user)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_user;
static int (*read_user_str)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_user_str;
#define bpf_probe_read_user read_user
#define bpf_probe_read_user_str read_user_str

/* Makes the compiler forget what it knows about a number, so that the mask behind it stays in the code. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/*
 * The step of a loop, as for(...; NEXT(i)), with LOOP_BEGIN first in its body. Older verifiers (6.1 still) take a loop only
 * when a jump closes it, else it is a "back-edge"; left alone, the compiler lays some out so that their last instruction
 * falls into the first. tests/tracerd/test_tracerd_loops.py finds these on any kernel.
 */
#define NEXT(i) ((i)++, ({ asm volatile("" : "+r"(i) : : "memory"); }))
#define LOOP_BEGIN asm volatile("" : : : "memory")

#define S_FORMAT 0170000
#define S_SOCKET 0140000
#define MINOR_BITS 20

/* A device number as stat(2) shows it. */
INLINE u64 user_dev(u32 dev)
{
	u64 major = dev >> MINOR_BITS, minor = dev & ((1u << MINOR_BITS) - 1);
	return (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & ~0xffull) << 12) | ((major & ~0xfffull) << 32);
}
