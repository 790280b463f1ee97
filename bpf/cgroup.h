/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Moves between cgroups. They are told when they have happened, so the box of a process is remembered from its fork or
 * exec on (members): one that has left its box is seen to leave, whoever moved it.
 */
#pragma once

INLINE u64 id_of_cgroup(struct cgroup *cgroup)
{
	struct kernfs_node *node = 0;
	u64 id = 0;

	READ(node, cgroup, cgroup, kn);
	bpf_probe_read_kernel(&id, sizeof(id), (void *)((u64)node + OFFSET(kernfs_node, id)));
	return id;
}

/* Whether the box's cgroup is this one or lies above it. */
INLINE int is_below(struct cgroup *cgroup, u64 box)
{
	int depth = 0, found = 0;

	READ(depth, cgroup, cgroup, level);
#pragma clang loop unroll(disable)
	for (int level = 1; level < CGROUP_DEPTH; NEXT(level)) {
		u64 id = 0;

		LOOP_BEGIN;
		if (level > depth)
			break;
#ifdef CAISSON_HAS_cgroup__ancestors
		struct cgroup *above = 0;

		bpf_probe_read_kernel(&above, sizeof(above), (void *)((u64)cgroup + OFFSET(cgroup, ancestors) + level * 8));
		id = id_of_cgroup(above);
#else
		bpf_probe_read_kernel(&id, sizeof(id), (void *)((u64)cgroup + OFFSET(cgroup, ancestor_ids) + level * 8));
#endif
		if (id == box)
			found = 1;
	}
	return found;
}

/* TP_PROTO(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool threadgroup); in the mover */
RAW_TRACEPOINT_PROBE(cgroup_attach_task)
{
	struct cgroup *target = (struct cgroup *)ctx->args[0];
	const char *path = (const char *)ctx->args[1];
	struct task_struct *task = (struct task_struct *)ctx->args[2];
	struct cgroup_root *root = 0;
	struct build build, *b = &build;
	struct caisson_rec *rec;
	int hierarchy = 0;
	pid_t pid = 0;
	struct box *box;
	u64 *id, box_id;
	u32 key;

	READ(pid, task_struct, task, tgid);
	key = pid;
	id = members.lookup(&key);
	if (!id)
		return 0;
	box_id = *id;
	box = boxes.lookup(&box_id);
	if (!box)
		return 0;
	READ(root, cgroup, target, root);
	READ(hierarchy, cgroup_root, root, hierarchy_id);
	if (!begin(b, box, CAISSON_CROSS, 0))
		return 0;
	rec = REC(b);
	rec->arg[0] = CAISSON_CROSS_CGROUP;
	rec->arg[1] = pid;
	rec->arg[2] = id_of_cgroup(target);
	rec->arg[3] = hierarchy ? 1 : is_below(target, box_id);
	rec->arg[4] = (u32)hierarchy;
	add_kernel_string(b, CAISSON_T_GIVEN, path, PATH_READ);
	finish(b);
	return 0;
}
