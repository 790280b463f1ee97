/* SPDX-License-Identifier: GPL-2.0-only */
/* struct msghdr and struct mmsghdr (the message, then a number) in the caller's memory, of 64-bit and of 32-bit calls. */
#pragma once

/* Where a message's name stands, and how long it is. */
INLINE void read_message_name(u64 message, int compat, u64 *name, u32 *length)
{
	u64 word[2] = {};

	if (compat) {
		bpf_probe_read_user(word, 8, (void *)message);
		*name = (u32)word[0];
		*length = word[0] >> 32;
	} else {
		bpf_probe_read_user(word, 16, (void *)message);
		*name = word[0];
		*length = word[1];
	}
}

/* Moves on to the message ``now->next``: where its control data is. */
INLINE void open_message(struct now *now)
{
	u64 message = now->arg[1] + (u64)now->next * (now->compat ? 32 : 64);

	now->offset = 0;
	now->item = 0;
	if (now->compat) {
		u32 word[6] = {};

		bpf_probe_read_user(word, sizeof(word), (void *)message);
		now->control = word[4];
		now->length = word[5];
	} else {
		u64 word[6] = {};

		bpf_probe_read_user(word, sizeof(word), (void *)message);
		now->control = word[4];
		now->length = word[5];
	}
}
