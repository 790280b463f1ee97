/* SPDX-License-Identifier: GPL-2.0-only */
/* Sockets beyond connect: made, bound, listening, accepted; and datagrams with a destination, each message of a batch. */
#pragma once

/* The other end of an accepted connection, from the kernel's own socket. */
INLINE u64 add_peer(struct build *b, struct sock *sock, u16 family)
{
	u8 *address = at(b, b->scratch->off + 8);
	u64 length = 2;
	u16 order = 0;
	u32 v4 = 0;

	*(u64 *)address = family;
	if (family == FAMILY_INET) {
		READ(order, sock_common, sock, skc_dport);
		READ(v4, sock_common, sock, skc_daddr);
		*(u16 *)&address[2] = order;
		*(u32 *)&address[4] = v4;
		*(u64 *)&address[8] = 0;
		length = 16;
	} else if (family == FAMILY_INET6) {
		READ(order, sock_common, sock, skc_dport);
		*(u16 *)&address[2] = order;
		bpf_probe_read_kernel(&address[8], 16, (void *)((u64)sock + OFFSET(sock_common, skc_v6_daddr)));
		*(u32 *)&address[24] = 0;
		length = 28;
	} else if (family == FAMILY_UNIX) {
		struct unix_address *name = 0;
		struct sock *peer = 0;
		int bytes = 0;

		READ(peer, unix_sock, sock, peer);
		if (peer)
			READ(name, unix_sock, peer, addr);
		if (name) {
			READ(bytes, unix_address, name, len);
			length = (u32)bytes;
			OPAQUE(length);
			if (length > ADDR_BYTES)
				length = ADDR_BYTES;
			bpf_probe_read_kernel(address, length, (void *)((u64)name + OFFSET(unix_address, name)));
		}
	}
	close_field(b, CAISSON_T_ADDR, length, 0);
	return (u16)(order << 8 | order >> 8);
}

int stage_socket(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct socket_view view = {};
	struct call_head *head;
	struct caisson_rec *rec;
	u64 family, port = 0;
	u32 op;
	s32 fd;
	long ret;

	if (!box || !now)
		return 0;
	op = RULE_OP(now->rule);
	ret = now->ret;
	if (!begin(b, box, CAISSON_SOCKET, ret < 0 ? -ret : 0))
		return 0;
	rec = REC(b);
	head = kept_call(b, now);
	add_call_flags(b, now, head);
	fd = op == CAISSON_SOCKET_CREATE || op == CAISSON_SOCKET_ACCEPT ? ret : now->arg[0];
	if (op == CAISSON_SOCKET_CREATE) { /* also when it came to nothing */
		view.family = now->arg[0];
		view.type = now->arg[1] & 0xf;
		view.protocol = now->arg[2];
	}
	if (fd >= 0 && !(now->flags & (CAISSON_F_DIRECT | CAISSON_F_PENDING)))
		read_socket(&view, fd);
	family = view.family;
	if (op == CAISSON_SOCKET_BIND)
		add_address(b, head, now->arg[1], now->arg[2], &family, &port);
	else if (op == CAISSON_SOCKET_ACCEPT && ret >= 0 && view.sock)
		port = add_peer(b, view.sock, view.family);
	rec->arg[0] = op;
	rec->arg[1] = family;
	rec->arg[2] = port;
	rec->arg[3] = (s64)fd;
	rec->arg[4] = (u32)(u16)view.type | (u32)view.protocol << 16;
	rec->arg[5] = view.inode;
	finish(b);
	forget_call(now);
	return 0;
}

#define MSG_FASTOPEN 0x20000000

/* One message with a destination. ``head``: the address was kept; else it stands at ``name`` now. */
INLINE void record_send(struct box *box, struct now *now, struct socket_view *view, struct call_head *head, u64 name, u32 length,
			u32 op, int error)
{
	struct build build, *b = &build;
	struct caisson_rec *rec;
	u64 family = view->family, port = 0;

	if (!begin(b, box, CAISSON_SOCKET, error))
		return;
	rec = REC(b);
	if (head)
		b->scratch->kept = (u64)(head + 1); /* the bytes stand behind it */
	add_call_flags(b, now, head);
	if (now->next)
		b->scratch->flags &= ~CAISSON_F_NO_ENTRY;
	add_address(b, head, name, length, &family, &port);
	rec->arg[0] = op;
	rec->arg[1] = family;
	rec->arg[2] = port;
	rec->arg[3] = (s64)(s32)now->arg[0];
	rec->arg[4] = (u32)(u16)view->type | (u32)view->protocol << 16;
	rec->arg[5] = view->inode;
	finish(b);
}

int stage_send(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	struct socket_view view = {};
	struct small_call *small;
	struct large_call *large = 0;
	struct call_head *head = 0;
	u64 rule, name = 0, key;
	u32 length = 0, op = CAISSON_SOCKET_SEND, special, tid, cpu;
	long ret;

	if (!box || !now)
		return 0;
	rule = now->rule;
	ret = now->ret;
	special = RULE_SPECIAL(rule);
	key = now->key;
	tid = key;
	if (now->flags & CAISSON_F_PENDING) {
		cpu = bpf_get_smp_processor_id();
		large = call_scratches.lookup(&cpu);
	} else if (now->flags & CAISSON_F_IO_URING)
		large = large_calls.lookup(&key);
	else {
		small = small_of(tid);
		if (small)
			head = &small->head;
		else
			large = large_calls.lookup(&key);
	}
	if (large)
		head = &large->head;
	if (!(now->flags & CAISSON_F_DIRECT))
		read_socket(&view, now->arg[0]);
	if (special != SPECIAL_MESSAGES) {
		if (now->arg[RULE_V1(rule)] & MSG_FASTOPEN)
			op = CAISSON_SOCKET_FASTOPEN;
		if (!head && special == SPECIAL_MESSAGE)
			read_message_name(now->arg[1], now->compat, &name, &length);
		else if (!head) {
			name = now->arg[4];
			length = now->arg[5];
		}
		if (head ? head->length : name)
			record_send(box, now, &view, head, name, length, op, ret < 0 ? -ret : 0);
		if (op == CAISSON_SOCKET_FASTOPEN && view.sock)
			settle(view.sock, now->arg[0], ret < 0 && !under_way(ret));
		forget_call(now);
		return 0;
	}
	if (ret < 0) {
		read_message_name(now->arg[1], now->compat, &name, &length);
		if (name)
			record_send(box, now, &view, 0, name, length, op, -ret);
		forget_call(now);
		return 0;
	}
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < SENDS; NEXT(i)) {
		u32 message;

		LOOP_BEGIN;
		message = now->next;
		if (message >= ret)
			break;
		read_message_name(now->arg[1] + (u64)message * (now->compat ? 32 : 64), now->compat, &name, &length);
		if (name)
			record_send(box, now, &view, 0, name, length, op, 0);
		now->next = message + 1;
	}
	if (now->next < ret) {
		stages.call(ctx, STAGE_SEND);
		__sync_fetch_and_add(&box->count[CAISSON_SOCKET].seen, ret - now->next);
		__sync_fetch_and_add(&box->count[CAISSON_SOCKET].unreadable, ret - now->next);
	}
	forget_call(now);
	return 0;
}
