"""open-userspace-fs: A file system served by another task.

Does: opens the FUSE device. Must be seen: the opens of client and server. Needs: /dev/fuse in the box.
"""

import errno
import json
import os
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
if wrong := attempt(os.open, b"/dev/fuse", os.O_RDWR):
    end("inapplicable", f"/dev/fuse: {errno.errorcode[wrong]}")
say("open", "openat", path=b"/dev/fuse", object=b"/dev/fuse")
end()
