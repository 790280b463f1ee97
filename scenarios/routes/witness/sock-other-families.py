"""sock-other-families: Families that pass by a network namespace.

Does: makes a socket of vsock, AF_ALG, netlink or bluetooth; connects to nothing. Must be seen: the making and its errno.
Needs: nothing; refused where the box's filter refuses it.
"""

import json
import os
import socket
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


os.mkdir(HERE)
family, kind = {"vsock": (40, 1), "alg": (38, 5), "netlink": (16, 3), "bluetooth": (31, 3)}[CASE]
say("socket", "socket", family=family, type=kind, protocol=0, errno=attempt(socket.socket, family, kind, 0))
end()
