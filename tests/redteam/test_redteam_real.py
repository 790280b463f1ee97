"""Real routes in real boxes, in a world of their own; and a rig that tells when something is wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caisson_runner.redteam.errors import RedTeamError

sys.path.insert(0, str(Path(__file__).parent))
from redteam_rig import Try, needs_boxes, needs_strace

pytestmark = [needs_boxes, needs_strace]
Own = Callable[[str, dict[str, str]], Path]

BEGIN = """
import json, os, socket, sys
NONCE, WORLD = sys.argv[1], json.loads(sys.argv[3])
def end(tries=(), word="performed", **saw):
    print(json.dumps({"end": word, "reason": "so", "tries": list(tries), "saw": saw}), flush=True)
"""


def by_name(said: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["route"], one["network"]): one for one in said["outcomes"]}


def test_ways_out_are_blocked_by_what_is_declared_and_recorded(attempt: Try) -> None:
    code, said = attempt(
        "ip-tcp-literal", "ip-v6-literal", "ip-other-transports/udplite", "ip-other-transports/mptcp-6", "ip-udp-send",
        "local-unix-path", "local-unix-abstract", "local-keyring", "local-clone3/plain", "local-abi32/getpid",
        "dns-tunnel-qname", "gate-fronting/h1", "gate-fronting/h2", "gate-allowed-exfil/body",
        "gate-allowed-exfil/too-large",
    )  # fmt: skip
    assert (code, said["complaints"]) == (0, [])
    found = by_name(said)
    assert found["ip-tcp-literal", "none"]["blocked_by"] == ["no-route"]
    assert found["ip-v6-literal/documentation", "gate"]["blocked_by"] == ["gate:ip_literal"]
    assert found["ip-other-transports/udplite", "none"]["blocked_by"] == ["seccomp"]
    for way in ("stream", "datagram", "fifo"):  # shown folders hold sockets and pipes of the outside
        assert found[f"local-unix-path/{way}", "none"]["verdict"] == "blocked"
    assert found["ip-udp-send", "gate"]["recorded_by"] == ["packet"]
    assert "gate:dns_not_allowed" in found["dns-tunnel-qname", "gate"]["blocked_by"]
    passed = found["gate-allowed-exfil/body", "gate"]
    assert passed["verdict"] == "reached" and "gate-http" in passed["recorded_by"]
    assert any("events.jsonl#" in place for place in found["gate-fronting/h1", "gate"]["evidence"])


def test_a_way_out_that_is_open_fails_the_run(attempt: Try, own_register: Own, tmp_path: Path) -> None:
    through = BEGIN + (
        "one = socket.create_connection(('127.0.0.1', 3128), 5)\n"
        "head = f'GET http://web.allowed.test/{NONCE} HTTP/1.1\\r\\nHost: web.allowed.test\\r\\n\\r\\n'\n"
        "one.sendall(head.encode())\n"
        "one.recv(9)\n"
        "end()\n"
    )
    entries = "".join(
        f'[{name}]\nnetworks = ["gate"]\ngroup = "B3"\ngate = "gate:not_allowed"\n'
        for name in ("through", "silent", "lying")
    )
    silent = BEGIN + "end([{'event': 'socket', 'op': 'socket', 'family': 2, 'type': 1, 'errno': 38}])\n"
    lying = BEGIN + "print(WORLD.get('secret')); end(leaks=['what it must not have'])\n"
    folder = own_register(entries, {"through": through, "silent": silent, "lying": lying})
    code, said = attempt(folder=folder)
    assert code == 1
    found = {one["route"]: one for one in said["outcomes"]}
    assert found["through"]["verdict"] == "reached"
    assert any("203.0.113.80:80" in place for place in found["through"]["reached"]), "the canary heard it"
    assert "the box shows the secret" not in found["through"]["reached"], "it did not say what came back"
    assert found["silent"]["complaints"][-1] == "nothing recorded it"
    assert found["lying"]["reached"] == ["what it must not have"]
    results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    assert {(one["ruleId"], one["level"]) for one in results} == {(name, "error") for name in found}


def test_what_could_not_act_is_told_and_never_blocked(attempt: Try, own_register: Own) -> None:
    entries = "".join(
        f'[{name}]\nnetworks = ["none"]\ngroup = "B1"\nblocked = "no-route"\n'
        for name in ("crashes", "absent", "unable")
    )
    scripts = {
        "crashes": "raise SystemExit('oh')\n",
        "absent": BEGIN + "end(word='inapplicable')\n",
        "unable": BEGIN + "end(word='not-performed')\n",
    }
    code, said = attempt(folder=own_register(entries, scripts))
    verdicts = {one["route"]: (one["verdict"], one["good"]) for one in said["outcomes"]}
    assert verdicts == {
        "crashes": ("not-performed", False),
        "absent": ("inapplicable", True),
        "unable": ("not-performed", False),
    }
    assert code == 1


def test_a_task_is_tried_in_its_own_boxes_and_its_answer_found_in_its_image(attempt: Try, tmp_path: Path) -> None:
    task = tmp_path / "task"
    for folder in ("environment", "tests", "solution"):
        (task / folder).mkdir(parents=True)
    line = "the_answer_of_this_task = compute_it_in_forty_two_steps(7)"
    (task / "task.toml").write_text('version = "1.0"\n')
    (task / "instruction.md").write_text("Do it.\n")
    (task / "environment" / "Dockerfile").write_text("FROM debian:12\nWORKDIR /work\nCOPY notes.txt /work/\n")
    (task / "environment" / "notes.txt").write_text(f"old:\n  {line}\n")
    (task / "tests" / "test.sh").write_text("true\n")
    (task / "solution" / "solve.sh").write_text(f"{line}\n")
    bases = ("debian:12=host",)
    code, said = attempt("local-fix-in-image", "ip-tcp-literal", task=str(task), bases=bases)
    found = by_name(said)
    assert found["ip-tcp-literal", "none"]["good"] and ("ip-tcp-literal", "gate") not in found
    assert found["local-fix-in-image", "none"]["reached"] == ["a line of the answer in /work/notes.txt"]
    assert code == 1


WORLD = """
import socket, sys
from caisson_runner.redteam import world
before = world.namespace()
listener = socket.create_server(("127.0.0.1", 0))
world.enter()
world.settle()
assert world.links() == {"lo"} and world.namespace() != before
for place in (("198.51.100.7", 80), ("127.0.0.1", listener.getsockname()[1])):
    try:
        socket.create_connection(place, 2)
    except ConnectionRefusedError:
        print("refused")
here = socket.create_server(("0.0.0.0", 8080))
socket.create_connection(("203.0.113.9", 8080), 2)
print("every address leads here")
"""


def test_the_world_has_no_way_out_and_every_address_in_it() -> None:
    done = subprocess.run([sys.executable, "-c", WORLD], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["refused", "refused", "every address leads here"], done.stderr


def test_a_deaf_canary_stops_the_red_team_before_any_route(
    attempt: Try, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A shadowed module in the process of the routes: its datagram canaries hear nothing."""
    (tmp_path / "sitecustomize.py").write_text(
        "import caisson_runner.redteam.canaries as c, caisson_runner.redteam.prove as p\n"
        "c.Canaries._datagram = lambda self, where, one: one.recv(9999) and None\n"
        "p.WAIT_S = 1.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RedTeamError, match="does not hear: the rig is broken"):
        attempt("ip-tcp-literal")


@pytest.mark.slow
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    environment = {**os.environ, "CAISSON_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "caisson_runner", "redteam", "routes", "--engine", "local", "--witness", "strace"]
    with subprocess.Popen(
        [*words, "-o", str(tmp_path / "out")],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "done" in line:
                break
        process.terminate()
        process.stderr.read()
        assert process.wait(60) == 143
    boxes = tmp_path / "home" / "boxes"
    deadline = 100
    while boxes.is_dir() and list(boxes.iterdir()) and deadline:
        subprocess.run(["sleep", "0.2"], check=True)
        deadline -= 1
    assert not boxes.is_dir() or not list(boxes.iterdir())
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _words(one)]


def _words(cmdline: Path) -> str:
    try:
        return cmdline.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def test_no_name_of_the_routes_is_ever_asked_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of a red team asks the world's name server: its resolv.conf is bound over the host's."""
    from caisson_runner.redteam.outside import HOSTS, NSSWITCH, RESOLV

    assert "198.51.100.53" in RESOLV and NSSWITCH.split() == ["hosts:", "files", "dns"]
    assert all(socket.inet_aton(line.split()[0]) for line in HOSTS.splitlines() if ":" not in line.split()[0])
