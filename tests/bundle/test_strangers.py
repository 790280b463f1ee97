"""A bundle whose maker wrote what he liked and signed it: it is shown or refused in one line, never a stack trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import bundle_sample as sample
import click
import pytest
from caisson_runner.bundle import Bundle, BundleWriter
from caisson_runner.bundle.keys import Signer
from caisson_runner.cli import cli
from caisson_runner.errors import CaissonError
from click.testing import CliRunner

STRANGER = Signer.of(bytes(32))
GATE: list[dict[str, Any]] = [
    {"seq": 1, "kind": "dns", "verdict": "deny", "name_dns": "a.test", "t_mono": 5, "conn": 1},
    {"seq": 2, "kind": "tcp", "verdict": "allow", "orig_dst": ["192.0.2.1", 80], "t_mono": 6, "conn": 1},
    {"seq": 3, "kind": "http", "verdict": "allow", "url": "http://a.test/", "t_mono": 6, "conn": 1},
    {"seq": 4, "kind": "http-done", "of": 3, "status": 200, "resp_len": 5, "t_mono": 7},
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    folder = tmp_path_factory.mktemp("stranger")
    made = sample.bundle(folder / "plain", signer=STRANGER)
    with BundleWriter(folder / "b", STRANGER) as writer:
        for name in made.files:
            shutil.copyfile(made.root / name, writer.path(name))
        writer.adopt(Bundle.open(made.root).index())
        writer.add_bytes("gate/events.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in GATE))
        writer.add_bytes("gate/pids.jsonl", b'{"seq":1,"pid":7}\n')
    return folder / "b"


@pytest.mark.parametrize(
    ("name", "line", "where"),
    [
        ("run.json", None, ["harness_pids"]),
        ("run.json", None, ["task"]),
        ("run.json", None, ["task", "visible_tests"]),
        ("verdict.json", None, ["findings"]),
        ("verdict.json", None, ["findings", 0]),
        ("verdict.json", None, ["findings", 0, "seqs"]),
        ("coverage.json", None, ["counts"]),
        ("gate/pids.jsonl", 0, ["seq"]),
        ("gate/pids.jsonl", 0, ["pid"]),
        ("gate/events.jsonl", 0, ["seq"]),
        ("gate/events.jsonl", 1, ["orig_dst"]),
        ("gate/events.jsonl", 3, ["of"]),
        ("gate/events.jsonl", 3, ["resp_len"]),
        ("state/diff.jsonl", 0, ["path"]),
    ],
)
def test_a_strangers_json_of_any_shape_is_shown_or_refused(
    whole: Path, tmp_path: Path, name: str, line: int | None, where: list[Any]
) -> None:
    for junk in (None, 1 << 70, "\ud800\x1b[31m", [[1]], {"a": 1}):
        root = tmp_path / "b"
        shutil.copytree(whole, root, dirs_exist_ok=True)
        lines = [(root / name).read_bytes()] if line is None else (root / name).read_bytes().splitlines()
        value = json.loads(lines[line or 0])
        inner = value
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = junk
        lines[line or 0] = json.dumps(value).encode()
        (root / name).write_bytes(b"\n".join(lines) + b"\n")
        for arguments in (["show"], ["show", "--json"], ["events"], ["verify"], ["export", "-f", "ocsf"]):
            done = CliRunner().invoke(cli, ["bundle", *arguments, str(root)], standalone_mode=False)
            told = CaissonError | click.exceptions.Exit | SystemExit
            assert done.exception is None or isinstance(done.exception, told), (
                arguments,
                junk,
                done.exception,
            )
            assert "\x1b" not in done.output


def anew(whole: Path, target: Path, name: str, change: dict[str, Any]) -> Path:
    """The same bundle with other words in one file, signed: `verify` has nothing against it."""
    with BundleWriter(target, STRANGER) as writer:
        for one in Bundle.open(whole).files:
            shutil.copyfile(whole / one, writer.path(one))
        value = json.loads((whole / name).read_bytes()) | change
        (writer.partial / name).write_bytes(json.dumps(value).encode())
        writer.adopt(Bundle.open(whole).index())
    Bundle.open(target, verify=True)
    return target


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run.json", {"task": "x"}),
        ("run.json", {"agent": None}),
        ("run.json", {"state": [1]}),
        ("run.json", {"schema": "another"}),
        ("verdict.json", {"trusting": "yes"}),
        ("verdict.json", {"findings": ["x"]}),
        ("verdict.json", {"word": None, "findings": None}),
    ],
)
def test_signed_nonsense_is_not_graded(whole: Path, tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    bundle = anew(whole, tmp_path / "b", name, change)
    arguments = ["regrade", str(bundle), "--checks", "add-mul", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(done.exception, CaissonError), done.exception
    assert done.exception.exit_code == 2
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["not-there", "a-key"])
def test_a_key_that_is_none_is_the_callers_mistake(whole: Path, tmp_path: Path, key: str) -> None:
    (tmp_path / "a-key").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    arguments = ["bundle", "verify", str(whole), "--key", str(tmp_path / key)]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(done.exception, CaissonError)
    assert done.exception.exit_code == 2
