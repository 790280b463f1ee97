/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The trampoline tier on changes: which object a rename, unlink, link, mkdir, … was about, as the kernel found it, links and
 * mounts followed. The security hooks come before the change and do not know its result, so what they see is kept, and the
 * end of the call tells it (add_changed_object). Included with that function before the stages, with the hooks behind them.
 */
#pragma once

/* What a hook saw, until the end of the call; the walk stands as in a record. */
struct changed {
	u64 dev, ino;
	u32 flags, length, cut, unused;
	u64 head; /* room for a field's head */
	u8 walk[PATH_BYTES + NAME_READ];
};

BPF_TABLE("lru_hash", u32, struct changed, changes, CHANGE_SLOTS);

INLINE void add_changed_object(struct build *b)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct changed *seen = changes.lookup(&tid);
	struct caisson_rec *rec = REC(b);
	u64 length;

	if (!seen)
		return;
	rec->arg[3] = seen->dev;
	rec->arg[4] = seen->ino;
	length = seen->length;
	OPAQUE(length);
	if (length > sizeof(seen->walk))
		length = sizeof(seen->walk);
	bpf_probe_read_kernel(at(b, b->scratch->off + 8), length, seen->walk);
	b->scratch->flags |= seen->flags;
	close_field(b, CAISSON_T_WALK, length, seen->cut);
	changes.delete(&tid);
}
