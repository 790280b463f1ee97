"""open-raw-device: The file's blocks from its device, not from the file.

Does: in the box only the refusals: memory and block devices are opened, and a device node made. Must be seen: each
attempt with its errno. Needs: nothing (the read itself needs a loop device, which no box has).
"""

import json
import os
import stat
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
for path in (b"/dev/mem", b"/dev/kmem", b"/dev/loop0", b"/dev/vda"):
    say("open", "openat", path=path, errno=attempt(os.open, path, os.O_RDONLY))
node = HERE + b"/disk"
say("change", "mknod", path=node, errno=attempt(os.mknod, node, 0o600 | stat.S_IFBLK, os.makedev(7, 0)))
end()
