"""sock-udp-send: Datagrams, in every way to send them.

Does: sendto, sendmsg, sendmmsg (three addresses in one call), or a connect and sends, to receivers of its own, and one
to an address outside. Must be seen: every address. Needs: lo.
"""

import ctypes
import json
import os
import socket
import struct
import sys

NONCE, CASE = sys.argv[1], (*sys.argv[2:], "")[0]
HERE = b"/dev/shm/" + NONCE.encode()


def say(event, op, **facts):
    """One line of ground truth; bytes become hex."""
    print(json.dumps({"event": event, "op": op, "pid": os.getpid(), **facts}, default=bytes.hex), flush=True)


def end(word="performed", reason=""):
    print(json.dumps({"end": word, "reason": reason}), flush=True)
    os._exit(0)


def attempt(work, *arguments):
    """Errno of what the work raised; 0 when it went well."""
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(number, *arguments):
    """A system call by its x86-64 number: the result, or minus errno."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


def inet(host, port):
    """An IPv4 address as the kernel is given it."""
    return struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


os.mkdir(HERE)
receivers = []
for _ in range(3):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))
    receivers.append(one)
addresses = [one.getsockname() for one in receivers]
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if CASE == "sendto":
    sender.sendto(NONCE.encode(), addresses[0])
    say("socket", "sendto", addr=inet(*addresses[0]))
    far = ("198.51.100.5", 9999)
    say("socket", "sendto", addr=inet(*far), errno=attempt(sender.sendto, b"x", far))
elif CASE == "sendmsg":
    sender.sendmsg([NONCE.encode()], [], 0, addresses[0])
    say("socket", "sendmsg", addr=inet(*addresses[0]))
elif CASE == "sendmmsg":
    kept, heads = [], b""
    for address in addresses:
        name, text = ctypes.create_string_buffer(inet(*address), 16), ctypes.create_string_buffer(NONCE.encode())
        part = (ctypes.c_uint64 * 2)(ctypes.addressof(text), 16)
        kept += [name, text, part]
        heads += struct.pack("<QIxxxxQQQQiIxxxxxxxx", ctypes.addressof(name), 16, ctypes.addressof(part), 1, 0, 0, 0, 0)
    if call(307, sender.fileno(), ctypes.create_string_buffer(heads, len(heads)), 3, 0) != 3:
        end("not-performed", "not every message was sent")
    for address in addresses:
        say("socket", "sendmmsg", addr=inet(*address))
else:
    sender.connect(addresses[0])
    sender.send(NONCE.encode())
    say("connect", "connect", addr=inet(*addresses[0]))
for one in receivers[: 3 if CASE == "sendmmsg" else 1]:
    one.settimeout(2)
    if one.recv(64) != NONCE.encode():
        end("not-performed", "the receiver got something else")
end()
