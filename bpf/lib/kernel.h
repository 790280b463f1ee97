/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reading the kernel. Types come from the running kernel's BTF; no dereference is left to bcc's rewriting: a read
 * goes through READ, and a failed one leaves a zero and is noted in the record being built.
 */
#pragma once

#define INLINE static __always_inline

/* dst = *src, through the fault-safe read, which leaves zeros where src cannot be read and then returns non-zero.
 * Results are collected with |=, not compared: every branch doubles what the verifier has to follow. */
#define READ(dst, src) ((u32)bpf_probe_read_kernel(&(dst), sizeof(dst), &(src)))

/* Makes the compiler forget what it knows about a number, so that the mask behind it stays in the code. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

#define S_FORMAT 0170000
#define S_SOCKET 0140000
#define MINOR_BITS 20

/* A device number as stat(2) shows it. */
INLINE u64 user_dev(u32 dev)
{
	u64 major = dev >> MINOR_BITS, minor = dev & ((1u << MINOR_BITS) - 1);
	return (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & ~0xffull) << 12) | ((major & ~0xfffull) << 32);
}
