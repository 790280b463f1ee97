/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is kept of a call between its two ends. A thread's slot is found by its number alone, so that nothing is hashed,
 * allocated or given back: a thread claims the place with one atomic step and lets it go at the end. Where another thread
 * holds the place, or the strings are too long for it, large_calls has the call. Before 5.12 programs cannot claim
 * anything, and small_calls is a hash.
 */
#pragma once

INLINE int fits_small(u32 length, u32 second)
{
	return ((length + 7) & ~7u) + second <= SMALL_PATH;
}

#ifdef CAISSON_FETCH
INLINE struct call_slot *slot_of(u32 tid)
{
	u32 place = tid & (SMALL_SLOTS - 1);

	return call_slots.lookup(&place);
}
#endif

/* The slot with this thread's call, or 0. */
INLINE struct small_call *small_of(u32 tid)
{
#ifdef CAISSON_FETCH
	struct call_slot *slot = slot_of(tid);

	return slot && slot->owner == tid ? &slot->call : 0;
#else
	return small_calls.lookup(&tid);
#endif
}

/* What is kept of this thread's call, wherever; or 0. */
INLINE struct call_head *head_of(u32 tid)
{
	struct small_call *small = small_of(tid);
	struct large_call *large;
	u64 key = tid;

	if (small)
		return &small->head;
	large = large_calls.lookup(&key);
	return large ? &large->head : 0;
}

/* Keeps an entry until the call's end. When there is no room, the end says NO_ENTRY. */
INLINE void keep_call(struct large_call *call)
{
	u64 key = (u32)bpf_get_current_pid_tgid();
	int fits = fits_small(call->head.length, call->head.second);
	u32 tid = key;
#ifdef CAISSON_FETCH
	struct call_slot *slot = slot_of(tid);

	if (slot && (slot->owner == tid || !__sync_val_compare_and_swap(&slot->owner, 0, key))) {
		u64 bytes = ((call->head.length + 7) & ~7u) + call->head.second;

		slot->call.head = call->head;
		OPAQUE(bytes);
		if (bytes > SMALL_PATH)
			bytes = SMALL_PATH;
		bpf_probe_read_kernel(slot->call.bytes, bytes, call->bytes);
	} else
		fits = 0;
#else
	small_calls.update(&tid, (struct small_call *)call);
#endif
	if (!fits)
		large_calls.update(&key, call);
}

/* This thread's call is over, or the thread is. */
INLINE void let_go(u32 tid)
{
#ifdef CAISSON_FETCH
	struct call_slot *slot = slot_of(tid);

	if (slot && slot->owner == tid)
		slot->owner = 0;
#else
	small_calls.delete(&tid);
#endif
}
