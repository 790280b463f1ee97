"""sock-sctp-mptcp: Other transports.

Does: makes a socket of MPTCP or SCTP. Must be seen: the making and its errno. Needs: kernel support.
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
protocol = {"mptcp": 262, "sctp": 132}[CASE]
wrong = attempt(socket.socket, socket.AF_INET, socket.SOCK_STREAM, protocol)
say("socket", "socket", family=2, type=1, protocol=protocol, errno=wrong)
end()
