/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Requests of io_uring, which are no system calls: what was asked is taken when the request is submitted, from the kernel's
 * own copy of names, and told with its result when it completes. Both run in a task of the box: the submitter, its
 * kernel thread (SQPOLL) or a worker. A request that will not tell its success is told at once (PENDING).
 */
#pragma once

#ifdef CAISSON_URING

enum {
	RING_SENDMSG = 9,
	RING_RECVMSG = 10,
	RING_ACCEPT = 13,
	RING_CONNECT = 16,
	RING_OPENAT = 18,
	RING_STATX = 21,
	RING_SEND = 26,
	RING_OPENAT2 = 28,
	RING_RENAMEAT = 35,
	RING_UNLINKAT = 36,
	RING_MKDIRAT = 37,
	RING_SYMLINKAT = 38,
	RING_LINKAT = 39,
	RING_MSG_RING = 40,
	RING_FSETXATTR = 41,
	RING_SETXATTR = 42,
	RING_SOCKET = 45,
	RING_SEND_ZC = 47,
	RING_SENDMSG_ZC = 48,
	RING_INSTALL_FD = 54,
	RING_FTRUNCATE = 55,
	RING_BIND = 56,
	RING_LISTEN = 57
};

#define REQUEST_FIXED 1u         /* the file is a slot of the ring's table */
#define REQUEST_SILENT (1u << 6) /* IOSQE_CQE_SKIP_SUCCESS */
#ifdef CAISSON_HOOK_OPEN
/* An open that is under way, by the kernel's copy of its name: so the hook inside finds its request. */
struct ring_open {
	u64 request, mode;
	u32 flags, opcode;
};

BPF_TABLE("lru_hash", u64, struct ring_open, ring_opens, RING_OPENS);
#endif

#define SLOT_ANY (~0u)           /* the kernel chooses a slot and returns it */
#define SLOT_PASSED (~1u)        /* the descriptor passed is a slot */
#define MSG_SEND_FD 1

/* The kernel's copy of a name. */
INLINE u32 keep_name(struct large_call *keep, u32 off, struct filename *name)
{
	const char *text = 0;
	long n;

	READ(text, filename, name, name);
	n = bpf_probe_read_kernel_str(&keep->bytes[off & (LARGE_PATH - 8)], PATH_READ, text);
	return n > 0 ? n : 0;
}

INLINE void keep_names(struct large_call *keep, struct filename *first, struct filename *second)
{
	keep->head.length = keep_name(keep, 0, first);
	if (second)
		keep->head.second = keep_name(keep, keep->head.length + 7, second);
}

/* What an operation asks for, with arguments where the system call of that name has them. 0: nothing of interest. */
INLINE int read_request(struct large_call *keep, struct io_kiocb *req, u32 opcode, s32 fd)
{
	struct filename *first = 0, *second = 0;
	int dir = 0, newdir = 0, flags = 0, number = 0;
	u64 how[3] = {}, name = 0;
	umode_t mode = 0;
	u32 slot = 0, word = 0;

	switch (opcode) {
	case RING_OPENAT:
	case RING_OPENAT2:
		READ(dir, io_open, req, dfd);
		READ(first, io_open, req, filename);
		READ(slot, io_open, req, file_slot);
		bpf_probe_read_kernel(how, sizeof(how), (void *)((u64)req + OFFSET(io_open, how)));
		keep->head.arg[0] = (s64)dir;
		keep->head.arg[2] = how[0];
		keep->head.arg[3] = how[1] | how[2] << 32;
		keep->head.arg[5] = (u64)first;
		keep->head.fd = slot;
		keep_names(keep, first, 0);
		return 1;
	case RING_RENAMEAT:
		READ(dir, io_rename, req, old_dfd);
		READ(newdir, io_rename, req, new_dfd);
		READ(first, io_rename, req, oldpath);
		READ(second, io_rename, req, newpath);
		READ(flags, io_rename, req, flags);
		keep->head.arg[0] = (s64)dir;
		keep->head.arg[2] = (s64)newdir;
		keep->head.arg[4] = (u32)flags;
		keep_names(keep, first, second);
		return 1;
	case RING_LINKAT:
	case RING_SYMLINKAT:
		READ(dir, io_link, req, old_dfd);
		READ(newdir, io_link, req, new_dfd);
		READ(first, io_link, req, oldpath);
		READ(second, io_link, req, newpath);
		READ(flags, io_link, req, flags);
		if (opcode == RING_SYMLINKAT)
			keep->head.arg[1] = (s64)newdir;
		else {
			keep->head.arg[0] = (s64)dir;
			keep->head.arg[2] = (s64)newdir;
			keep->head.arg[4] = (u32)flags;
		}
		keep_names(keep, first, second);
		return 1;
	case RING_UNLINKAT:
		READ(dir, io_unlink, req, dfd);
		READ(flags, io_unlink, req, flags);
		READ(first, io_unlink, req, filename);
		keep->head.arg[0] = (s64)dir;
		keep->head.arg[2] = (u32)flags;
		keep_names(keep, first, 0);
		return 1;
	case RING_MKDIRAT:
		READ(dir, io_mkdir, req, dfd);
		READ(mode, io_mkdir, req, mode);
		READ(first, io_mkdir, req, filename);
		keep->head.arg[0] = (s64)dir;
		keep->head.arg[2] = mode;
		keep_names(keep, first, 0);
		return 1;
	case RING_STATX:
		READ(dir, io_statx, req, dfd);
		READ(first, io_statx, req, filename);
		keep->head.arg[0] = (s64)dir;
		keep_names(keep, first, 0);
		return 1;
	case RING_SETXATTR:
		READ(first, io_xattr, req, filename);
		keep_names(keep, first, 0);
		return 1;
#ifdef CAISSON_HAS_io_ftrunc__len
	case RING_FTRUNCATE:
		READ(name, io_ftrunc, req, len);
		keep->head.arg[0] = (s64)fd;
		keep->head.arg[1] = name;
		return 1;
#endif
	case RING_FSETXATTR:
	case RING_LISTEN:
	case RING_INSTALL_FD:
		keep->head.arg[0] = (s64)fd;
		return 1;
	case RING_RECVMSG:
	case RING_SENDMSG:
	case RING_SENDMSG_ZC:
		READ(name, io_sr_msg, req, umsg);
		READ(word, io_sr_msg, req, msg_flags);
		keep->head.arg[0] = (s64)fd;
		keep->head.arg[1] = name;
		keep->head.arg[2] = word;
		if (opcode == RING_RECVMSG)
			return 1;
		read_message_name(keep->head.arg[1], 0, &name, &slot);
		if (!name)
			return 0;
		keep_address(keep, name, slot);
		return 1;
	case RING_CONNECT:
		READ(name, io_connect, req, addr);
		READ(number, io_connect, req, addr_len);
		keep->head.arg[0] = (s64)fd;
		keep_address(keep, name, number);
		return 1;
#ifdef CAISSON_HAS_io_async_msghdr__addr
	case RING_SEND:
	case RING_SEND_ZC:
	case RING_BIND: {
		struct io_async_msghdr *copy = 0;
		u64 length = 0;

		keep->head.arg[0] = (s64)fd;
		READ(copy, io_kiocb, req, async_data);
		if (!copy)
			return 0;
#ifdef CAISSON_HAS_io_bind__addr_len
		if (opcode == RING_BIND)
			READ(number, io_bind, req, addr_len);
#endif
		if (opcode != RING_BIND) {
			READ(word, io_sr_msg, req, msg_flags);
			keep->head.arg[3] = word;
			READ(name, io_async_msghdr, copy, msg__msg_name);
			READ(number, io_async_msghdr, copy, msg__msg_namelen);
			if (!name)
				return 0;
		}
		length = (u32)number;
		OPAQUE(length);
		if (length > ADDR_BYTES)
			length = ADDR_BYTES;
		name = (u64)copy + OFFSET(io_async_msghdr, addr);
		keep->head.length = bpf_probe_read_kernel(keep->bytes, length, (void *)name) ? 0 : length;
		return 1;
	}
#endif
	case RING_SOCKET:
		READ(dir, io_socket, req, domain);
		READ(number, io_socket, req, type);
		READ(flags, io_socket, req, protocol);
		READ(slot, io_socket, req, file_slot);
		keep->head.arg[0] = (u32)dir;
		keep->head.arg[1] = (u32)number;
		keep->head.arg[2] = (u32)flags;
		keep->head.fd = slot;
		return 1;
	case RING_ACCEPT:
		READ(slot, io_accept, req, file_slot);
		keep->head.arg[0] = (s64)fd;
		keep->head.fd = slot;
		return 1;
	case RING_MSG_RING:
		READ(word, io_msg, req, cmd);
		if (word != MSG_SEND_FD)
			return 0;
		READ(word, io_msg, req, src_fd);
		READ(slot, io_msg, req, dst_fd);
		keep->head.arg[0] = word;
		keep->head.arg[1] = slot;
		return 1;
	}
	return 0;
}

INLINE void hand_over(struct now *now, struct call_head *head, u64 rule, u64 key, u32 flags, s64 ret)
{
	now->rule = rule;
	now->key = key;
	now->nr = head->nr;
	now->compat = 0;
	now->ret = ret;
	now->flags = CAISSON_F_IO_URING | flags;
	now->file = 0;
	now->next = 0;
	now->control = now->length = now->offset = 0;
	now->item = now->passed = 0;
#pragma unroll
	for (int i = 0; i < 6; i++)
		now->arg[i] = head->arg[i];
	now->arg[6] = now->arg[7] = 0;
}

/* The file in a slot of the ring's own table; 0 before 6.13, where the table looked otherwise. */
INLINE u64 file_in_slot(struct io_ring_ctx *ring, u32 slot)
{
	u64 file = 0;
#ifdef CAISSON_HAS_io_rsrc_node__file_ptr
	struct io_rsrc_node **nodes = 0, *node = 0;
	u32 many = 0;

	READ(many, io_ring_ctx, ring, file_table__data__nr);
	if (slot >= many)
		return 0;
	READ(nodes, io_ring_ctx, ring, file_table__data__nodes);
	bpf_probe_read_kernel(&node, sizeof(node), nodes + slot);
	if (node)
		READ(file, io_rsrc_node, node, file_ptr);
#endif
	return file & ~7ull;
}

/* TP_PROTO(struct io_kiocb *req); before 6.4 io_uring_submit_sqe(struct io_kiocb *req, bool force_nonblock) */
#ifdef CAISSON_URING_SQE
RAW_TRACEPOINT_PROBE(io_uring_submit_sqe)
#else
RAW_TRACEPOINT_PROBE(io_uring_submit_req)
#endif
{
	struct io_kiocb *req = (struct io_kiocb *)ctx->args[0];
	u32 cpu = bpf_get_smp_processor_id(), nr, flags = 0;
	u64 key = (u64)req, rule, user_data = 0;
	struct scratch *scratch;
	struct large_call *keep;
	struct rule *both;
	struct box *box;
	u8 opcode = 0;
	s32 fd = 0;

	READ(opcode, io_kiocb, req, opcode);
	nr = URING_RULES + opcode;
	both = rules.lookup(&nr);
	if (!both || !both->word[0])
		return 0;
	box = current_box();
	if (!box)
		return 0;
	rule = both->word[0];
	if (is_unwanted(rule, box))
		return 0;
	keep = call_scratches.lookup(&cpu);
	scratch = scratches.lookup(&cpu);
	if (!keep || !scratch)
		return 0;
	READ(fd, io_kiocb, req, cqe__fd);
	READ(user_data, io_kiocb, req, cqe__user_data);
	bpf_probe_read_kernel(&flags, sizeof(flags), (void *)((u64)req + OFFSET(io_kiocb, flags)));
	keep->head.nr = opcode;
	keep->head.length = 0;
	keep->head.second = 0;
	keep->head.fd = 0;
	keep->head.user = user_data;
	keep->head.call = CALL_OTHER;
	keep->head.told = 0;
	keep->head.changed = 0;
	__builtin_memset(keep->head.arg, 0, sizeof(keep->head.arg));
	if (!read_request(keep, req, opcode, fd))
		return 0;
	if (RULE_STAGE(rule) == STAGE_OPEN || RULE_STAGE(rule) == STAGE_NAMES)
		keep->head.told = 1; /* the names are the kernel's own copies */
	if ((flags & REQUEST_FIXED) && !keep->head.fd)
		keep->head.fd = SLOT_PASSED;
#ifdef CAISSON_HOOK_OPEN
	if (RULE_STAGE(rule) == STAGE_OPEN) {
		/* The hook tells it, silent or not; its completion tells what the hook did not see, so that a file was not opened. */
		struct ring_open asked = {.request = key, .mode = keep->head.arg[3], .opcode = opcode};
		u64 name = keep->head.arg[5];

		asked.flags = keep->head.fd ? CAISSON_F_DIRECT : 0;
		if (!ring_opens.update(&name, &asked))
			large_calls.update(&key, keep);
		return 0;
	}
#endif
	if (!(flags & REQUEST_SILENT) && !large_calls.update(&key, keep))
		return 0;
	hand_over(&scratch->now, &keep->head, rule, key, CAISSON_F_PENDING | (keep->head.fd ? CAISSON_F_DIRECT : 0), 0);
	stages.call(ctx, RULE_STAGE(rule));
	count_unreadable(box, RULE_KIND(rule));
	return 0;
}

/* TP_PROTO(ring, req, cqe); before 6.15 TP_PROTO(ring, req, user_data, res, …) */
RAW_TRACEPOINT_PROBE(io_uring_complete)
{
	struct io_ring_ctx *ring = (struct io_ring_ctx *)ctx->args[0];
	u64 key = ctx->args[1], user_data, rule, file = 0;
	u32 cpu = bpf_get_smp_processor_id(), nr, flags = 0, slot;
	struct scratch *scratch;
	struct large_call *kept;
	struct rule *both;
	struct box *box;
	s32 result;

	if (!key)
		return 0;
	kept = large_calls.lookup(&key);
	if (!kept)
		return 0;
#ifdef CAISSON_URING_CQE
	struct { u64 user_data; s32 result; u32 flags; } cqe = {};

	bpf_probe_read_kernel(&cqe, sizeof(cqe), (void *)ctx->args[2]);
	user_data = cqe.user_data;
	result = cqe.result;
#else
	user_data = ctx->args[2];
	result = ctx->args[3];
#endif
	nr = URING_RULES + kept->head.nr;
	both = rules.lookup(&nr);
	box = current_box();
	scratch = scratches.lookup(&cpu);
	if (!both || !box || !scratch || kept->head.user != user_data ||
	    (RULE_STAGE(both->word[0]) == STAGE_RECEIVE && result < 0)) {
		large_calls.delete(&key); /* no message, or left over of an earlier request at this address */
		return 0;
	}
	rule = both->word[0];
#ifdef CAISSON_HOOK_OPEN
	if (RULE_STAGE(rule) == STAGE_OPEN) {
		u64 name = kept->head.arg[5];

		ring_opens.delete(&name);
	}
#endif
	slot = kept->head.fd;
	if (slot) {
		flags = CAISSON_F_DIRECT;
		if (result >= 0)
			file = file_in_slot(ring, slot == SLOT_PASSED ? (u32)kept->head.arg[0] : slot == SLOT_ANY ? (u32)result : slot - 1);
	}
	hand_over(&scratch->now, &kept->head, rule, key, flags, result);
	scratch->now.file = file;
	stages.call(ctx, RULE_STAGE(rule));
	count_unreadable(box, RULE_KIND(rule));
	large_calls.delete(&key);
	return 0;
}
#endif
