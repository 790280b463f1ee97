/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * connect: the address as the kernel was given it, what kind of socket, and what came of it. A TCP connect may be under way
 * when its call returns; how it ended is told by a record of its own (LATER), which the socket's change of state causes.
 */
#pragma once

#define FAMILY_UNIX 1
#define FAMILY_INET 2
#define FAMILY_INET6 10
#define STATE_SYN_SENT 2
#define STATE_CLOSE 7
#define PROTOCOL_TCP 6
#define GIVEN_UP 103 /* ECONNABORTED: its owner closed it first */

struct socket_view {
	struct sock *sock;
	u64 inode;
	u16 family, protocol;
	short type;
};

/* What is behind a descriptor, when it is a socket. */
INLINE void read_socket(struct socket_view *view, u32 fd)
{
	struct file *file = file_of(fd);
	struct inode *inode = 0;
	struct socket *socket = 0;
	umode_t mode = 0;
	unsigned long number = 0;

	if (!file)
		return;
	READ(inode, file, file, f_inode);
	READ(mode, inode, inode, i_mode);
	if ((mode & S_FORMAT) != S_SOCKET)
		return;
	READ(number, inode, inode, i_ino);
	view->inode = number;
	READ(socket, file, file, private_data);
	if (!socket)
		return;
	READ(view->type, socket, socket, type);
	READ(view->sock, socket, socket, sk);
	if (!view->sock)
		return;
	READ(view->protocol, sock, view->sock, sk_protocol);
	READ(view->family, sock_common, view->sock, skc_family);
}

/* Adds the address kept at entry, or what stands in memory now. ``port`` and ``family`` are set from it. */
INLINE void add_address(struct build *b, struct call_head *head, u64 user, u64 bytes, u64 *family, u64 *port)
{
	u64 length = head ? head->length : (u32)bytes;

	OPAQUE(length);
	if (length > ADDR_BYTES)
		length = ADDR_BYTES;
	if (head)
		bpf_probe_read_kernel(at(b, b->scratch->off + 8), length, (void *)b->scratch->kept);
	else if (!user || bpf_probe_read_user(at(b, b->scratch->off + 8), length, (void *)user))
		length = 0;
	if (length >= 4) {
		u8 *address = at(b, b->scratch->off + 8);

		*family = *(u16 *)address;
		if (*family == FAMILY_INET || *family == FAMILY_INET6)
			*port = (u32)address[2] << 8 | address[3];
		close_field(b, CAISSON_T_ADDR, length, 0);
	} else
		b->scratch->partial = 1;
}

/* A record small enough for the stack: a softirq may come while another program uses the CPU's scratch. */
struct outcome {
	struct caisson_rec rec;
	u64 head;
	u8 address[32];
};

INLINE void tell_outcome(struct unsettled *one, struct sock *sock)
{
	struct box *box = boxes.lookup(&one->box);
	struct outcome out = {};
	struct class_count *count;
	u16 family = 0, port = 0;
	u32 address = 0;
	void *ring;
	u64 slot, length = 16;

	if (!box)
		return;
	count = &box->count[CAISSON_CONNECT];
	__sync_fetch_and_add(&count->seen, 1);
	READ(family, sock_common, sock, skc_family);
	READ(port, sock_common, sock, skc_dport);
	*(u16 *)&out.address[0] = family;
	*(u16 *)&out.address[2] = port;
	if (family == FAMILY_INET6) {
		bpf_probe_read_kernel(&out.address[8], 16, (void *)((u64)sock + OFFSET(sock_common, skc_v6_daddr)));
		length = 28;
	} else {
		READ(address, sock_common, sock, skc_daddr);
		*(u32 *)&out.address[4] = address;
	}
	out.head = length << 32 | CAISSON_T_ADDR;
	out.rec.size = length == 28 ? sizeof(out.rec) + 40 : sizeof(out.rec) + 24;
	out.rec.kind = CAISSON_CONNECT;
	out.rec.nfields = 1;
#ifdef CAISSON_FETCH
	out.rec.seq = __sync_fetch_and_add(&box->seq, 1) + 1;
#endif
	out.rec.time_ns = bpf_ktime_get_boot_ns();
	out.rec.start_ns = one->start;
	out.rec.parent_start_ns = one->parent_start;
	out.rec.cgroup = one->cgroup;
	out.rec.pid = one->pid;
	out.rec.tid = one->tid;
	out.rec.ppid = one->ppid;
	out.rec.uid = one->uid;
	out.rec.gid = one->gid;
	out.rec.error = one->error;
	out.rec.flags = CAISSON_F_LATER;
	__builtin_memcpy(out.rec.comm, one->comm, sizeof(one->comm));
	out.rec.arg[0] = family;
	out.rec.arg[1] = (u16)(port << 8 | port >> 8);
	out.rec.arg[2] = PROTOCOL_TCP;
	out.rec.arg[3] = one->fd;
	out.rec.arg[4] = one->type;
	out.rec.arg[5] = one->inode;
	slot = box->ring;
	ring = rings.lookup(&slot);
	if (!ring)
		__sync_fetch_and_add(&count->dropped_map, 1);
	else if (length == 28 ? bpf_ringbuf_output(ring, &out, sizeof(out.rec) + 40, ring_wakeup(ring)) :
				bpf_ringbuf_output(ring, &out, sizeof(out.rec) + 24, ring_wakeup(ring)))
		__sync_fetch_and_add(&count->dropped_ring, 1);
	else
		__sync_fetch_and_add(&count->delivered, 1);
}

/* Whether the other of the two (call returned, outcome came) has happened before. */
INLINE int is_second(struct unsettled *one)
{
#ifdef CAISSON_FETCH
	return __sync_fetch_and_add(&one->turns, 1) != 0;
#else
	__sync_fetch_and_add(&one->turns, 1);
	return *(volatile u64 *)&one->turns > 1;
#endif
}

/* The call has returned: its own result is the last word, or another one follows. */
INLINE void settle(struct sock *sock, u32 fd, int final)
{
	u64 key = (u64)sock;
	struct unsettled *one = unsettled.lookup(&key);

	if (!one)
		return;
	if (!final) {
		one->fd = fd;
		if (!is_second(one))
			return;
		tell_outcome(one, sock);
	}
	unsettled.delete(&key);
}

/* EINPROGRESS, EINTR and the kernel's own codes for a call to be restarted */
INLINE int under_way(long ret)
{
	return ret == -115 || ret == -4 || (ret <= -512 && ret >= -516);
}

int stage_connect(struct bpf_raw_tracepoint_args *ctx)
{
	struct box *box = current_box();
	struct now *now = called();
	struct build build, *b = &build;
	struct socket_view view = {};
	struct call_head *head;
	struct caisson_rec *rec;
	u64 family = 0, port = 0;
	u32 fd;
	long ret;

	if (!box || !now)
		return 0;
	ret = now->ret;
	fd = now->arg[0];
	if (!begin(b, box, CAISSON_CONNECT, ret < 0 ? -ret : 0))
		return 0;
	rec = REC(b);
	head = kept_call(b, now);
	add_call_flags(b, now, head);
	add_address(b, head, now->arg[1], now->arg[2], &family, &port);
	rec->arg[0] = family;
	rec->arg[1] = port;
	rec->arg[3] = fd;
	if (!(now->flags & CAISSON_F_DIRECT))
		read_socket(&view, fd);
	rec->arg[2] = view.protocol;
	rec->arg[4] = (u16)view.type;
	rec->arg[5] = view.inode;
	finish(b);
	if (view.sock)
		settle(view.sock, fd, !under_way(ret));
	forget_call(now);
	return 0;
}

/* TP_PROTO(const struct sock *sk, const int oldstate, const int newstate); also in softirqs */
RAW_TRACEPOINT_PROBE(inet_sock_set_state)
{
	struct sock *sock = (struct sock *)ctx->args[0];
	int old = ctx->args[1], state = ctx->args[2], error = 0;
	struct task_struct *task, *leader = 0, *parent = 0;
	struct unsettled one = {}, *found;
	unsigned long number = 0;
	struct socket *socket = 0;
	struct inode *inode;
	u64 key = (u64)sock, ids, owner;
	struct box *box;
	short type = 0;

	if (state == STATE_SYN_SENT) {
		box = find_box(&one.box);
		if (!box)
			return 0;
		task = (struct task_struct *)bpf_get_current_task();
		ids = bpf_get_current_pid_tgid();
		owner = bpf_get_current_uid_gid();
		one.cgroup = bpf_get_current_cgroup_id();
		one.pid = ids >> 32;
		one.tid = ids;
		one.uid = owner;
		one.gid = owner >> 32;
		READ(leader, task_struct, task, group_leader);
		READ(one.start, task_struct, leader, start_boottime);
		READ(parent, task_struct, task, real_parent);
		READ(one.ppid, task_struct, parent, tgid);
		READ(leader, task_struct, parent, group_leader);
		READ(one.parent_start, task_struct, leader, start_boottime);
		bpf_get_current_comm(one.comm, sizeof(one.comm));
		READ(socket, sock, sock, sk_socket);
		if (socket) {
			READ(type, socket, socket, type);
			inode = (struct inode *)((u64)socket + OFFSET(socket_alloc, vfs_inode));
			READ(number, inode, inode, i_ino);
		}
		one.type = (u16)type;
		one.inode = number;
		if (unsettled.update(&key, &one)) {
			__sync_fetch_and_add(&box->count[CAISSON_CONNECT].seen, 1);
			__sync_fetch_and_add(&box->count[CAISSON_CONNECT].dropped_map, 1);
		}
		return 0;
	}
	if (old != STATE_SYN_SENT)
		return 0;
	found = unsettled.lookup(&key);
	if (!found)
		return 0;
	if (state == STATE_CLOSE) {
		READ(error, sock, sock, sk_err);
		found->error = error ? error : GIVEN_UP;
	}
	if (!is_second(found))
		return 0;
	tell_outcome(found, sock);
	unsettled.delete(&key);
	return 0;
}
