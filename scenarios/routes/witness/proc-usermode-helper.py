"""proc-usermode-helper: Programs that the kernel starts on a box's behalf.

Does: only tries to open for writing what names them: core pattern, modprobe path, hotplug, binfmt_misc. Never writes.
Must be seen: the refused opens. Needs: nothing.
"""

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
for path in (b"/proc/sys/kernel/core_pattern", b"/proc/sys/kernel/modprobe", b"/proc/sys/fs/binfmt_misc/register"):
    wrong = attempt(os.open, path, os.O_WRONLY)
    if not wrong:
        end("not-performed", "this box may write " + path.decode())
    say("open", "openat", path=path, errno=wrong)
end()
