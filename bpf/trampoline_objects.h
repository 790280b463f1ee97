/* SPDX-License-Identifier: GPL-2.0-only */
/* The security hooks behind trampoline_changes.h: one for each kind of change. */
#pragma once

INLINE int keep_changed(u64 mnt, u64 dentry)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct place place = {.mnt = (struct vfsmount *)mnt, .dentry = (struct dentry *)dentry};
	u32 tid = bpf_get_current_pid_tgid();
	struct object object = {};
	struct build build, *b = &build;
	struct hook_scratch *held;
	struct inode *inode = 0;
	struct small_call *call;
	struct changed *seen;

	if (!current_box())
		return 0;
	call = small_of(tid);
	if (!call || call->head.call != CALL_CHANGE || call->head.told)
		return 0;
	held = claim_scratch();
	if (!held)
		return 0;
	b->scratch = &held->scratch;
	b->scratch->flags = 0;
	b->scratch->partial = 0;
	b->scratch->nfields = 0;
	b->scratch->off = offsetof(struct changed, head);
	seen = (struct changed *)held->scratch.data;
	READ(inode, dentry, place.dentry, d_inode);
	if (inode)
		read_object(b, &object, inode, place.dentry);
	seen->dev = object.dev;
	seen->ino = object.ino;
	add_walk(b, CAISSON_T_WALK, place, task);
	seen->flags = b->scratch->flags;
	seen->length = b->scratch->length;
	seen->cut = b->scratch->end == WALK_CUT;
	if (!changes.update(&tid, seen))
		call->head.told = 1;
	release_scratch(held);
	return 0;
}

/* The object is argument ``entry`` below the folder ``folder``: struct path *, struct dentry *. */
#define CHANGE_BELOW(name, folder, entry)                                                  \
	int security__##name(u64 *ctx)                                                     \
	{                                                                                  \
		struct vfsmount *mnt = 0;                                                  \
		u64 path = HOOK_ARG(folder);                                               \
		READ(mnt, path, path, mnt);                                                \
		return keep_changed((u64)mnt, HOOK_ARG(entry));                            \
	}

/* The object is the first argument: struct path *. */
#define CHANGE_OF(name)                                                                    \
	int security__##name(u64 *ctx)                                                     \
	{                                                                                  \
		struct place place = {};                                                   \
		u64 path = HOOK_ARG(0);                                                    \
		READ(place.mnt, path, path, mnt);                                          \
		READ(place.dentry, path, path, dentry);                                    \
		return keep_changed((u64)place.mnt, (u64)place.dentry);                    \
	}

#ifdef CAISSON_HOOK_UNLINK
CHANGE_BELOW(unlink, 0, 1)
#endif
#ifdef CAISSON_HOOK_RMDIR
CHANGE_BELOW(rmdir, 0, 1)
#endif
#ifdef CAISSON_HOOK_MKDIR
CHANGE_BELOW(mkdir, 0, 1)
#endif
#ifdef CAISSON_HOOK_MKNOD
CHANGE_BELOW(mknod, 0, 1)
#endif
#ifdef CAISSON_HOOK_SYMLINK
CHANGE_BELOW(symlink, 0, 1)
#endif
#ifdef CAISSON_HOOK_LINK
CHANGE_BELOW(link, 1, 0) /* old dentry, folder of the new one: both are on one mount */
#endif
#ifdef CAISSON_HOOK_RENAME
CHANGE_BELOW(rename, 0, 1)
#endif
#ifdef CAISSON_HOOK_TRUNCATE
CHANGE_OF(truncate)
#endif
#ifdef CAISSON_HOOK_CHMOD
CHANGE_OF(chmod)
#endif
#ifdef CAISSON_HOOK_CHOWN
CHANGE_OF(chown)
#endif
