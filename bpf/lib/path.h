/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From a (mount, dentry) pair to names, by hand: d_path is not to be had in these programs. The walk goes from the leaf
 * up, crosses mounts, and ends at the task's root. It takes no lock, so a rename meanwhile can tear it; therefore dev
 * and ino are always recorded beside it.
 */
#pragma once

struct place {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

/* The struct path at an offset of something. */
#define READ_PLACE(place, type, ptr, member)                                                                    \
	(OFFSET(type, member##__dentry) == OFFSET(type, member##__mnt) + 8                                      \
		 ? (u32)bpf_probe_read_kernel(&(place), sizeof(place),                                          \
					      (void *)((u64)(ptr) + OFFSET(type, member##__mnt)))               \
		 : (READ((place).mnt, type, ptr, member##__mnt) | READ((place).dentry, type, ptr, member##__dentry)))

enum { WALK_DONE, WALK_CUT, WALK_ELSEWHERE };

/*
 * Adds the walk as a field. Flags: TRUNCATED when too long or too deep, UNRESOLVED when it ends anywhere but at the
 * task's root (the object lies outside of it, or has no name at all). The walk of a folder is then marked as cut instead.
 */
INLINE void add_walk_of(struct build *b, u32 tag, struct place from, struct task_struct *task, int folder)
{
	struct scratch *s = b->scratch;
	struct place here = from, root = {};
	struct fs_struct *fs = 0;
	struct dentry *top = 0;

	s->partial |= READ(fs, task_struct, task, fs);
	s->partial |= READ_PLACE(root, fs_struct, fs, root);
	READ(top, vfsmount, here.mnt, mnt_root);
	s->length = 0;
	s->end = WALK_CUT;
#pragma clang loop unroll(disable)
	for (int step = 0; step < WALK_STEPS; NEXT(step)) {
		struct dentry *up = 0;
		const char *name = 0;
		u64 length;
		long n;

		LOOP_BEGIN;
		if (here.dentry == root.dentry && here.mnt == root.mnt) {
			s->end = WALK_DONE;
			break;
		}
		if (here.dentry == top) {
			struct mount *mount = (void *)((u64)here.mnt - OFFSET(mount, mnt)), *parent = 0;

			READ(parent, mount, mount, mnt_parent);
			if (!parent || parent == mount) {
				s->end = WALK_ELSEWHERE; /* the root of another tree */
				break;
			}
			READ(here.dentry, mount, mount, mnt_mountpoint);
			here.mnt = (void *)((u64)parent + OFFSET(mount, mnt));
			READ(top, vfsmount, here.mnt, mnt_root);
			continue;
		}
		length = s->length;
		if (length > PATH_BYTES - NAME_READ)
			break;
		if (CLOSE(dentry, d_parent, d_parent, d_name__name)) {
			s->partial |= READ_SPAN(s, dentry, here.dentry, d_parent, d_name__name);
			IN_SPAN(s, up, dentry, d_parent, d_parent);
			IN_SPAN(s, name, dentry, d_parent, d_name__name);
		} else {
			s->partial |= READ(up, dentry, here.dentry, d_parent);
			s->partial |= READ(name, dentry, here.dentry, d_name__name);
		}
		n = bpf_probe_read_kernel_str(at(b, s->off + 8 + length), NAME_READ, name);
		if (n > 1) /* a nameless one (pipe, socket) adds nothing */
			s->length = length + n;
		if (up == here.dentry) {
			s->end = WALK_ELSEWHERE; /* never had a place in a tree: memfd, pipe, socket */
			break;
		}
		here.dentry = up;
	}
	if (s->end == WALK_ELSEWHERE)
		s->flags |= CAISSON_F_UNRESOLVED;
	close_field(b, tag, s->length, folder ? s->end != WALK_DONE : s->end == WALK_CUT);
}

INLINE void add_walk(struct build *b, u32 tag, struct place from, struct task_struct *task)
{
	add_walk_of(b, tag, from, task, 0);
}

/* What the file is. */
struct object {
	u64 dev, ino, nlink;
	u32 mode;
};

#define OVERLAY_MAGIC 0x794c7630

/* Reads identity and sets DELETED and UPPER. */
INLINE void read_object(struct build *b, struct object *object, struct inode *inode, struct dentry *dentry)
{
	struct super_block *super = 0;
	struct scratch *s = b->scratch;
	struct hlist_bl_node **hashed = 0;
	struct dentry *parent = 0;
	unsigned long magic = 0;
	umode_t mode = 0;
	u32 dev = 0, nlink = 0;

	if (CLOSE(inode, i_mode, i_sb, i_nlink) && CLOSE(inode, i_mode, i_ino, i_nlink)) {
		s->partial |= READ_SPAN(s, inode, inode, i_mode, i_nlink);
		IN_SPAN(s, mode, inode, i_mode, i_mode);
		IN_SPAN(s, super, inode, i_mode, i_sb);
		IN_SPAN(s, object->ino, inode, i_mode, i_ino);
		IN_SPAN(s, nlink, inode, i_mode, i_nlink);
	} else {
		s->partial |= READ(super, inode, inode, i_sb);
		s->partial |= READ(object->ino, inode, inode, i_ino);
		READ(nlink, inode, inode, i_nlink);
		READ(mode, inode, inode, i_mode);
	}
	if (CLOSE(super_block, s_dev, s_dev, s_magic)) {
		s->partial |= READ_SPAN(s, super_block, super, s_dev, s_magic);
		IN_SPAN(s, dev, super_block, s_dev, s_dev);
		IN_SPAN(s, magic, super_block, s_dev, s_magic);
	} else {
		s->partial |= READ(dev, super_block, super, s_dev);
		READ(magic, super_block, super, s_magic);
	}
	object->dev = user_dev(dev);
	object->nlink = nlink;
	object->mode = mode;
	if (CLOSE(dentry, d_hash__pprev, d_hash__pprev, d_parent)) {
		READ_SPAN(s, dentry, dentry, d_hash__pprev, d_parent);
		IN_SPAN(s, hashed, dentry, d_hash__pprev, d_hash__pprev);
		IN_SPAN(s, parent, dentry, d_hash__pprev, d_parent);
	} else {
		READ(hashed, dentry, dentry, d_hash__pprev);
		READ(parent, dentry, dentry, d_parent);
	}
	if (!nlink || (!hashed && parent != dentry))
		b->scratch->flags |= CAISSON_F_DELETED;
#ifdef CAISSON_OVERLAY
	if (magic == OVERLAY_MAGIC) {
		struct ovl_inode *ovl = (void *)((u64)inode - OFFSET(ovl_inode, vfs_inode));
		struct dentry *upper = 0;

		READ(upper, ovl_inode, ovl, __upperdentry);
		if (upper)
			b->scratch->flags |= CAISSON_F_UPPER;
	}
#endif
}

/* The open file behind a descriptor of the current task, or 0. */
INLINE struct file *file_of(u32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **all = 0, *file = 0;
	u64 both[2] = {};
	u32 max = 0;

	READ(files, task_struct, task, files);
	READ(table, files_struct, files, fdt);
	if (OFFSET(fdtable, fd) == OFFSET(fdtable, max_fds) + 8) {
		bpf_probe_read_kernel(both, sizeof(both), (void *)((u64)table + OFFSET(fdtable, max_fds)));
		max = both[0];
		all = (struct file **)both[1];
	} else {
		READ(max, fdtable, table, max_fds);
		READ(all, fdtable, table, fd);
	}
	if (fd >= max)
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), all + fd);
	return file;
}
