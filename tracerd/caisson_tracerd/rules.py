"""Which system calls are watched, and what a record takes from their arguments.

One line a call. The loader packs each into 64 bits and writes them into the programs' table of rules, which is indexed
by call number; the bits are read by ``bpf/lib/rules.h``. Standard library only: the loader uses it on the system's own
Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

RULES: Final = 1024
"""Entries of the table: call numbers, from `URING` on operations of io_uring."""

URING: Final = 768

STAGES: Final = {"none": 0, "open": 1, "names": 2, "exec": 3, "connect": 4, "socket": 5, "send": 6, "receive": 7}
"""Which program tells the end of a call. Of `PROGRAMS`, rest is called by receive, second by names, walks by that."""

PROGRAMS: Final = {f"stage_{name}": number for name, number in STAGES.items() if number} | {
    "stage_rest": 8,
    "stage_walks": 9,
    "stage_second": 10,
}
KINDS: Final = {
    "fork": 1, "exec": 2, "open": 4, "connect": 5, "change": 6, "look": 7, "pass": 8, "cross": 9, "socket": 10,
}  # fmt: skip
OPS: Final = {
    "change": (
        "", "rename", "link", "symlink", "unlink", "rmdir", "mkdir", "mknod", "truncate", "chmod", "chown", "utime",
        "setxattr", "removexattr", "mount", "umount", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount",
        "fspick", "mount_setattr", "mmap", "memfd", "setattr",
    ),
    "look": (
        "", "stat", "access", "readlink", "getdents", "statfs", "handle", "watch", "getxattr", "chdir",
    ),
    "pass": ("", "message", "pidfd", "handle", "addfd", "ring"),
    "cross": (
        "", "setns", "unshare", "cgroup", "ptrace", "vm_read", "vm_write", "bpf", "module", "keyctl", "uring",
        "userfaultfd", "chroot", "pivot_root", "prctl", "seccomp", "perf", "kexec", "clock", "host", "mark",
    ),
    "socket": ("", "create", "bind", "listen", "accept", "send", "fastopen"),
}  # fmt: skip
"""Names of arg0 by its value, as in ``bpf/record.h``."""

SPECIAL: Final = (
    "", "creat", "openat2", "fork", "vfork", "clone", "clone3", "socketcall", "message", "mmap", "ioctl", "prctl",
    "ptrace", "unlinkat", "sendto", "messages", "setsockopt",
)  # fmt: skip

_PLACES: Final = ("path", "dir", "new", "newdir", "fd", "name", "v1", "v2")
_FLAGS: Final = {"entry": 40, "retfd": 41, "text": 42, "address": 43}

# name            x86-64 i386  stage   kind    op        what is where (argument numbers), flags
_TABLE: Final = """
open                2     5  open    open    -         path=0 v1=1 v2=2 entry
creat              85     8  open    open    -         path=0 v2=1 entry special=creat
openat            257   295  open    open    -         dir=0 path=1 v1=2 v2=3 entry
openat2           437   437  open    open    -         dir=0 path=1 entry special=openat2
execve             59    11  exec    exec    -         path=0 v1=1 entry
execve            520     -  exec    exec    -         path=0 v1=1 entry
execveat          322   358  exec    exec    -         dir=0 path=1 v1=2 entry
execveat          545     -  exec    exec    -         dir=0 path=1 v1=2 entry
fork               57     2  none    fork    -         entry special=fork
vfork              58   190  none    fork    -         entry special=vfork
clone              56   120  none    fork    -         entry special=clone
clone3            435   435  none    fork    -         entry special=clone3
rename             82    38  names   change  rename    path=0 new=1 entry
renameat          264   302  names   change  rename    dir=0 path=1 newdir=2 new=3 entry
renameat2         316   353  names   change  rename    dir=0 path=1 newdir=2 new=3 v1=4 entry
link               86     9  names   change  link      path=0 new=1 entry
linkat            265   303  names   change  link      dir=0 path=1 newdir=2 new=3 v1=4 entry
symlink            88    83  names   change  symlink   path=0 new=1 entry text
symlinkat         266   304  names   change  symlink   path=0 newdir=1 new=2 entry text
unlink             87    10  names   change  unlink    path=0 entry
unlinkat          263   301  names   change  unlink    dir=0 path=1 v1=2 entry special=unlinkat
rmdir              84    40  names   change  rmdir     path=0 entry
mkdir              83    39  names   change  mkdir     path=0 v1=1 entry
mkdirat           258   296  names   change  mkdir     dir=0 path=1 v1=2 entry
mknod             133    14  names   change  mknod     path=0 v1=1 v2=2 entry
mknodat           259   297  names   change  mknod     dir=0 path=1 v1=2 v2=3 entry
truncate           76    92  names   change  truncate  path=0 v1=1 entry
truncate64          -   193  names   change  truncate  path=0 v1=1 v2=2 entry
ftruncate          77    93  names   change  truncate  fd=0 v1=1
ftruncate64         -   194  names   change  truncate  fd=0 v1=1 v2=2
chmod              90    15  names   change  chmod     path=0 v1=1 entry
fchmod             91    94  names   change  chmod     fd=0 v1=1
fchmodat          268   306  names   change  chmod     dir=0 path=1 v1=2 entry
fchmodat2         452   452  names   change  chmod     dir=0 path=1 v1=2 v2=3 entry
chown              92   182  names   change  chown     path=0 v1=1 v2=2 entry
lchown             94    16  names   change  chown     path=0 v1=1 v2=2 entry
fchown             93    95  names   change  chown     fd=0 v1=1 v2=2
fchownat          260   298  names   change  chown     dir=0 path=1 v1=2 v2=3 entry
chown32             -   212  names   change  chown     path=0 v1=1 v2=2 entry
lchown32            -   198  names   change  chown     path=0 v1=1 v2=2 entry
fchown32            -   207  names   change  chown     fd=0 v1=1 v2=2
utime             132    30  names   change  utime     path=0 entry
utimes            235   271  names   change  utime     path=0 entry
futimesat         261   299  names   change  utime     dir=0 path=1 entry
utimensat         280   320  names   change  utime     dir=0 path=1 v1=3 entry
utimensat_time64    -   412  names   change  utime     dir=0 path=1 v1=3 entry
setxattr          188   226  names   change  setxattr  path=0 name=1 v1=3 v2=4 entry
lsetxattr         189   227  names   change  setxattr  path=0 name=1 v1=3 v2=4 entry
fsetxattr         190   228  names   change  setxattr  fd=0 name=1 v1=3 v2=4
setxattrat        463   463  names   change  setxattr  dir=0 path=1 v2=2 name=3 entry
removexattr       197   235  names   change  removexattr path=0 name=1 entry
lremovexattr      198   236  names   change  removexattr path=0 name=1 entry
fremovexattr      199   237  names   change  removexattr fd=0 name=1
removexattrat     466   466  names   change  removexattr dir=0 path=1 v1=2 name=3 entry
file_setattr      469   469  names   change  setattr   dir=0 path=1 v1=4 entry
mount             165    21  names   change  mount     path=0 new=1 name=2 v1=3 entry text
umount              -    22  names   change  umount    path=0 entry
umount2           166    52  names   change  umount    path=0 v1=1 entry
move_mount        429   429  names   change  move_mount dir=0 path=1 newdir=2 new=3 v1=4 entry
open_tree         428   428  names   change  open_tree dir=0 path=1 v1=2 entry retfd
open_tree_attr    467   467  names   change  open_tree dir=0 path=1 v1=2 entry retfd
fsopen            430   430  names   change  fsopen    name=0 v1=1 retfd
fsconfig          431   431  names   change  fsconfig  fd=0 v1=1 name=2 v2=4
fsmount           432   432  names   change  fsmount   fd=0 v1=1 v2=2
fspick            433   433  names   change  fspick    dir=0 path=1 v1=2 entry
mount_setattr     442   442  names   change  mount_setattr dir=0 path=1 v1=2 entry
mmap                9     -  names   change  mmap      fd=4 v1=2 v2=3 special=mmap
mmap2               -   192  names   change  mmap      fd=4 v1=2 v2=3 special=mmap
memfd_create      319   356  names   change  memfd     name=0 v1=1 retfd
memfd_secret      447   447  names   change  memfd     v1=0 retfd
stat                4   106  names   look    stat      path=0 entry
lstat               6   107  names   look    stat      path=0 entry
fstat               5   108  names   look    stat      fd=0
oldstat             -    18  names   look    stat      path=0 entry
oldlstat            -    84  names   look    stat      path=0 entry
oldfstat            -    28  names   look    stat      fd=0
stat64              -   195  names   look    stat      path=0 entry
lstat64             -   196  names   look    stat      path=0 entry
fstat64             -   197  names   look    stat      fd=0
newfstatat        262   300  names   look    stat      dir=0 path=1 v1=3 entry
statx             332   383  names   look    stat      dir=0 path=1 v1=2 v2=3 entry
file_getattr      468   468  names   look    stat      dir=0 path=1 v1=4 entry
access             21    33  names   look    access    path=0 v1=1 entry
faccessat         269   307  names   look    access    dir=0 path=1 v1=2 entry
faccessat2        439   439  names   look    access    dir=0 path=1 v1=2 v2=3 entry
readlink           89    85  names   look    readlink  path=0 entry
readlinkat        267   305  names   look    readlink  dir=0 path=1 entry
getdents           78   141  names   look    getdents  fd=0
getdents64        217   220  names   look    getdents  fd=0
statfs            137    99  names   look    statfs    path=0 entry
fstatfs           138   100  names   look    statfs    fd=0
statfs64            -   268  names   look    statfs    path=0 entry
fstatfs64           -   269  names   look    statfs    fd=0
name_to_handle_at 303   341  names   look    handle    dir=0 path=1 v1=4 entry
inotify_add_watch 254   292  names   look    watch     path=1 v1=2 v2=0 entry
fanotify_mark     301     -  names   look    watch     dir=3 path=4 v1=1 v2=2 entry
getxattr          191   229  names   look    getxattr  path=0 name=1 entry
lgetxattr         192   230  names   look    getxattr  path=0 name=1 entry
fgetxattr         193   231  names   look    getxattr  fd=0 name=1
getxattrat        464   464  names   look    getxattr  dir=0 path=1 v1=2 name=3 entry
listxattr         194   232  names   look    getxattr  path=0 entry
llistxattr        195   233  names   look    getxattr  path=0 entry
flistxattr        196   234  names   look    getxattr  fd=0
listxattrat       465   465  names   look    getxattr  dir=0 path=1 v1=2 entry
chdir              80    12  names   look    chdir     path=0 entry
fchdir             81   133  names   look    chdir     fd=0
pidfd_getfd       438   438  names   pass    pidfd     v1=0 v2=1 retfd
open_by_handle_at 304   342  names   pass    handle    v1=0 v2=2 retfd
ioctl              16    54  names   pass    addfd     special=ioctl
ioctl             514     -  names   pass    addfd     special=ioctl
recvmsg            47   372  receive pass    message   special=message
recvmsg           519     -  receive pass    message   special=message
recvmmsg          299   337  receive pass    message   special=messages
recvmmsg          537     -  receive pass    message   special=messages
recvmmsg_time64     -   417  receive pass    message   special=messages
setns             308   346  names   cross   setns     fd=0
unshare           272   310  names   cross   unshare   -
ptrace            101    26  names   cross   ptrace    special=ptrace
ptrace            521     -  names   cross   ptrace    special=ptrace
process_vm_readv  310   347  names   cross   vm_read   -
process_vm_readv  539     -  names   cross   vm_read   -
process_vm_writev 311   348  names   cross   vm_write  -
process_vm_writev 540     -  names   cross   vm_write  -
bpf               321   357  names   cross   bpf       -
init_module       175   128  names   cross   module    -
finit_module      313   350  names   cross   module    fd=0
delete_module     176   129  names   cross   module    name=0
add_key           248   286  names   cross   keyctl    name=0
request_key       249   287  names   cross   keyctl    name=0
keyctl            250   288  names   cross   keyctl    -
io_uring_setup    425   425  names   cross   uring     -
userfaultfd       323   374  names   cross   userfaultfd -
chroot            161    61  names   cross   chroot    path=0 entry
pivot_root        155   217  names   cross   pivot_root path=0 new=1 entry
prctl             157   172  names   cross   prctl     special=prctl
seccomp           317   354  names   cross   seccomp   -
perf_event_open   298   336  names   cross   perf      -
kexec_load        246   283  names   cross   kexec     -
kexec_load        528     -  names   cross   kexec     -
kexec_file_load   320     -  names   cross   kexec     -
settimeofday      164    79  names   cross   clock     -
clock_settime     227   264  names   cross   clock     -
clock_settime64     -   404  names   cross   clock     -
stime               -    25  names   cross   clock     -
sethostname       170    74  names   cross   host      -
setdomainname     171   121  names   cross   host      -
swapon            167    87  names   cross   host      path=0 entry
reboot            169    88  names   cross   host      -
acct              163    51  names   cross   host      path=0 entry
iopl              172   110  names   cross   host      -
ioperm            173   101  names   cross   host      -
setsockopt         54   366  names   cross   mark      fd=0 special=setsockopt
setsockopt        541     -  names   cross   mark      fd=0 special=setsockopt
connect            42   362  connect connect -         path=1 new=2 fd=0 entry address
socketcall          -   102  none    connect -         entry special=socketcall
socket             41   359  socket  socket  create    -
bind               49   361  socket  socket  bind      path=1 new=2 fd=0 entry address
listen             50   363  socket  socket  listen    fd=0
accept             43     -  socket  socket  accept    -
accept4           288   364  socket  socket  accept    -
sendto             44   369  send    socket  send      path=4 new=5 fd=0 v1=3 entry address special=sendto
sendmsg            46   370  send    socket  send      fd=0 v1=2 entry special=message
sendmsg           518     -  send    socket  send      fd=0 v1=2 entry special=message
sendmmsg          307   345  send    socket  send      fd=0 v1=3 entry special=messages
sendmmsg          538     -  send    socket  send      fd=0 v1=3 entry special=messages
"""

# Operations of io_uring, by opcode; arguments stand where the system call of the same name has them.
_URING: Final = """
openat             18  open    open    -         dir=0 path=1 v1=2 v2=3 retfd
openat2            28  open    open    -         dir=0 path=1 v1=2 v2=3 retfd
renameat           35  names   change  rename    dir=0 path=1 newdir=2 new=3 v1=4
unlinkat           36  names   change  unlink    dir=0 path=1 v1=2 special=unlinkat
mkdirat            37  names   change  mkdir     dir=0 path=1 v1=2
symlinkat          38  names   change  symlink   path=0 newdir=1 new=2 text
linkat             39  names   change  link      dir=0 path=1 newdir=2 new=3 v1=4
fsetxattr          41  names   change  setxattr  fd=0
setxattr           42  names   change  setxattr  path=0
ftruncate          55  names   change  truncate  fd=0 v1=1
statx              21  names   look    stat      dir=0 path=1 v1=2 v2=3
recvmsg            10  receive pass    message   special=message
send_fd            40  names   pass    ring      v1=0 v2=1
install_fd         54  names   pass    ring      v1=0 v2=1 retfd
connect            16  connect connect -         path=1 new=2 fd=0 address
socket             45  socket  socket  create    -
bind               56  socket  socket  bind      path=1 new=2 fd=0 address
listen             57  socket  socket  listen    fd=0
accept             13  socket  socket  accept    -
sendmsg             9  send    socket  send      fd=0 v1=2 special=sendto
send               26  send    socket  send      fd=0 v1=3 special=sendto
send_zc            47  send    socket  send      fd=0 v1=3 special=sendto
sendmsg_zc         48  send    socket  send      fd=0 v1=2 special=sendto
"""


def packed(stage: str, kind: str, op: str, words: Sequence[str]) -> int:
    """One rule in 64 bits."""
    number = STAGES[stage] | KINDS[kind] << 4 | (0 if op == "-" else OPS[kind].index(op)) << 8
    places: dict[str, int] = dict.fromkeys(_PLACES, 7)
    for word in words:
        name, _, value = word.partition("=")
        if word == "-":
            continue
        if name == "special":
            number |= SPECIAL.index(value) << 44
        elif value:
            places[name] = int(value)
        else:
            number |= 1 << _FLAGS[name]
    for at, name in enumerate(_PLACES):
        number |= places[name] << (16 + 3 * at)
    return number


def calls() -> Iterator[tuple[str, int | None, int | None, int]]:
    """(name, x86-64 number, i386 number, rule) of every watched call."""
    for line in _TABLE.strip().splitlines():
        name, native, compat, stage, kind, op, *words = line.split()
        numbers = [None if number == "-" else int(number) for number in (native, compat)]
        yield name, numbers[0], numbers[1], packed(stage, kind, op, words)


def table() -> list[tuple[int, int]]:
    """(rule of a 64-bit call, rule of a 32-bit call) by number; 0 where nothing is watched."""
    found = [[0, 0] for _ in range(RULES)]
    for name, native, compat, rule in calls():
        for column, number in enumerate((native, compat)):
            if number is not None:
                if found[number][column]:
                    raise ValueError(f"two rules for call {number} ({name})")
                found[number][column] = rule
    for line in _URING.strip().splitlines():
        _name, opcode, stage, kind, op, *words = line.split()
        found[URING + int(opcode)][0] = packed(stage, kind, op, words)
    return [(row[0], row[1]) for row in found]
