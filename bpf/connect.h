/* SPDX-License-Identifier: GPL-2.0-only */
/* connect: the address as the kernel was given it, what kind of socket, and what came of it (EINPROGRESS kept). */
#pragma once

#define FAMILY_INET 2
#define FAMILY_INET6 10

INLINE void record_connect(struct box *box, int compat, u64 arg[5], long ret)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct small_call *call = small_calls.lookup(&tid);
	struct build build, *b = &build;
	struct caisson_rec *rec;
	struct file *file;
	u32 fd = arg[0];
	u64 length = 0;

	if (!begin(b, box, CAISSON_CONNECT, ret < 0 ? -ret : 0))
		return;
	rec = REC(b);
	if (compat)
		b->scratch->flags |= CAISSON_F_COMPAT32;
	if (call) {
		fd = call->head.arg[0];
		length = call->head.length;
		if (call->head.told)
			b->scratch->flags |= CAISSON_F_KERNEL;
		if (call->head.changed)
			b->scratch->flags |= CAISSON_F_TOCTOU;
		OPAQUE(length);
		if (length > ADDR_BYTES)
			length = ADDR_BYTES;
		bpf_probe_read_kernel(at(b, b->scratch->off + 8), length, call->bytes);
	} else {
		b->scratch->flags |= CAISSON_F_NO_ENTRY;
		length = (u32)arg[2];
		OPAQUE(length);
		if (length > ADDR_BYTES)
			length = ADDR_BYTES;
		if (bpf_probe_read_user(at(b, b->scratch->off + 8), length, (void *)arg[1]))
			length = 0;
	}
	rec->arg[3] = fd;
	if (length >= 4) {
		u8 *address = at(b, b->scratch->off + 8);
		u16 family = *(u16 *)address;

		rec->arg[0] = family;
		if (family == FAMILY_INET || family == FAMILY_INET6)
			rec->arg[1] = (u32)address[2] << 8 | address[3];
		close_field(b, CAISSON_T_ADDR, length, 0);
	} else
		b->scratch->partial = 1;
	file = file_of(fd);
	if (file) {
		struct inode *inode = 0;
		struct socket *socket = 0;
		struct sock *sock = 0;
		umode_t mode = 0;
		u16 protocol = 0;
		short type = 0;

		READ(inode, file, file, f_inode);
		READ(mode, inode, inode, i_mode);
		if ((mode & S_FORMAT) == S_SOCKET) {
			READ(socket, file, file, private_data);
			if (socket) {
				READ(type, socket, socket, type);
				READ(sock, socket, socket, sk);
				READ(protocol, sock, sock, sk_protocol);
			}
		}
		rec->arg[2] = protocol;
		rec->arg[4] = type;
	}
	finish(b);
}
