"""`caisson-run bundle export`, as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from caisson_runner.bundle import Bundle
from caisson_runner.cli import cli
from caisson_runner.cli_bundle import FORMATS as NAMES
from caisson_runner.export import FORMATS
from caisson_runner.export.errors import ExportError
from click.testing import CliRunner, Result


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bundle", "export", *map(str, arguments)])


def test_command_knows_every_format() -> None:
    assert set(NAMES) == set(FORMATS)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.folder is None])
def test_file_and_stdout_get_the_same_bytes(bundle: Bundle, tmp_path: Path, name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert call(bundle.root, "-f", name, "-o", tmp_path / "out").exit_code == 0
    done = call(bundle.root, "-f", name)
    assert done.exit_code == 0
    assert (tmp_path / "out").read_bytes() == done.stdout_bytes


def test_harbor_gets_a_folder(bundle: Bundle, tmp_path: Path) -> None:
    assert call(bundle.root, "-f", "harbor", "-o", tmp_path / "job").exit_code == 0
    assert (tmp_path / "job/result.json").exists()
    assert isinstance(call(bundle.root, "-f", "harbor").exception, ExportError)


def test_only_what_is_asked_for_is_exported(bundle: Bundle) -> None:
    done = call(bundle.root, "-f", "jsonl", "--pid", 7, "--start", 1_000_000_001)
    assert [(one["pid"], one["kind"]) for one in map(json.loads, done.stdout.splitlines())] == [
        (7, "fork"),
        (7, "exit"),
    ]


def test_file_that_is_there_is_never_written_over_and_a_failed_one_is_taken_away(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_bytes(b"mine")
    assert isinstance(call(bundle.root, "-f", "csv", "-o", tmp_path / "there").exception, ExportError)
    assert (tmp_path / "there").read_bytes() == b"mine"
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert isinstance(call(bundle.root, "-f", "parquet", "-o", tmp_path / "new").exception, ExportError)
    assert not (tmp_path / "new").exists()
