"""A plain user's box on the test machine, told step by step: ``service_story.py BOX``.

Runs inside the machine on the package's interpreter. Makes a box, runs one command after another in it until its own
standard input ends, then seals it, reads the whole journal and prints one JSON line: how many commands ran, what the
record says of them. Calls that find no daemon are tried again, as the runner does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import grpc
from caisson_proto import tracerd_pb2 as pb
from caisson_proto import tracerd_pb2_grpc as rpc
from caisson_proto.record import Kind, decode, strip_ring

OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))


LOOP = """
read -r _
n=0
until [ -e "$1" ]; do /bin/true "$n"; n=$((n + 1)); done
echo "$n"
"""


def patiently(call, request, seconds: float = 40):
    """One call; again while nobody answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call(request, timeout=20)
        except grpc.RpcError as problem:
            if problem.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                raise
            time.sleep(0.05)


def main() -> None:
    box_id = sys.argv[1]
    enough = Path.home() / f"{box_id}-enough"
    stub = rpc.TracerdStub(grpc.insecure_channel(f"unix:/run/caisson/{os.getuid()}/tracerd.sock", options=OPTIONS))
    patiently(stub.CreateBox, pb.CreateBoxRequest(id=box_id, lossless=box_id.startswith("lossless")))
    command = ["/bin/bash", "-c", LOOP, "bash", str(enough)]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    patiently(stub.Admit, pb.AdmitRequest(id=box_id, pid=shell.pid))
    print("running", flush=True)
    assert shell.stdin is not None
    shell.stdin.write("go\n")
    shell.stdin.flush()
    sys.stdin.read()
    enough.touch()
    ran = int(shell.communicate()[0])
    counts = {count.kind: count for count in patiently(stub.SealBox, pb.SealBoxRequest(id=box_id)).counts}
    journal = b""
    while True:
        try:
            for part in stub.ReadJournal(pb.ReadJournalRequest(id=box_id, offset=len(journal)), timeout=60):
                journal += part.data
            break
        except grpc.RpcError as problem:
            if problem.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(0.05)
    canonical, rest = strip_ring(journal)
    records = list(decode(canonical))
    seen = Counter(record.kind for record in records)
    names = [record.argv[1] for record in records if record.kind == Kind.EXEC and record.argv[:1] == (b"/bin/true",)]
    patiently(stub.DropBox, pb.DropBoxRequest(id=box_id))
    print(
        json.dumps(
            {
                "ran": ran,
                "named": names == [str(number).encode() for number in range(ran)],
                "records": len(records),
                "gapless": [record.seq for record in records] == list(range(1, len(records) + 1)),
                "left_over": len(rest),
                "dropped": sum(count.dropped_ring + count.dropped_map for count in counts.values()),
                "conserved": all(
                    count.seen == count.delivered + count.dropped_ring + count.dropped_map + count.unreadable
                    and count.delivered == seen[Kind[count.kind.upper()]]
                    for count in counts.values()
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
