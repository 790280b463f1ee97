"""`caisson-run bundle verify` and `key`, as they are called."""

from __future__ import annotations

import json
import os
from pathlib import Path

import bundle_sample as sample
import pytest
from caisson_runner.bundle import Bundle, BundleDamaged, BundleError
from caisson_runner.bundle.errors import NotTrusted
from caisson_runner.bundle.keys import Signer, own
from caisson_runner.cli import cli
from click.testing import CliRunner, Result

OTHER = Signer.of(bytes(32))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bundle", *map(str, arguments)])


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample.bundle(tmp_path / "b")


def test_whose_bundle_it_is_is_told(bundle: Bundle) -> None:
    done = call("verify", bundle.root)
    assert done.exit_code == 0
    assert f"{own().public.keyid} (this store's own)" in done.stdout
    assert "17 events, complete" in done.stdout


def test_unknown_key_is_said_to_be_unknown_and_known_once_it_is_named(tmp_path: Path) -> None:
    bundle = sample.bundle(tmp_path / "b", signer=OTHER, dropped=2)
    done = call("verify", bundle.root)
    assert done.exit_code == 0
    assert "a key that is not known here" in done.stdout
    assert "NOT COMPLETE: 2 events were dropped" in done.stdout
    (tmp_path / "their.pub").write_text(OTHER.public.pem)
    for key in (OTHER.public.keyid, tmp_path / "their.pub"):
        assert "(the key that was asked for)" in call("verify", bundle.root, "--key", key).stdout
    for key in (own().public.keyid, "f" * 64):
        assert isinstance(call("verify", bundle.root, "--key", key).exception, NotTrusted)
    assert "cannot be read" in str(call("verify", bundle.root, "--key", tmp_path / "none").exception)


def test_machines_get_the_counters(bundle: Bundle) -> None:
    said = json.loads(call("verify", bundle.root, "--json").stdout)
    assert (said["files"], said["signer"], said["witness"]["recorded"]) == (9, "this store's own", 17)


def test_key_is_printed_and_written_for_others(bundle: Bundle) -> None:
    done = call("key")
    path = done.stdout.splitlines()[1].split()[-1]
    assert Path(path).read_text() in done.stdout
    assert "(the key that was asked for)" in call("verify", bundle.root, "--key", path).stdout


@pytest.mark.parametrize("name", ["manifest.json", "statement.dsse.json", "seal.json", "run.json"])
def test_pipe_in_a_strangers_bundle_is_refused_and_never_waited_for(bundle: Bundle, name: str) -> None:
    (bundle.root / name).unlink()
    os.mkfifo(bundle.root / name)
    assert isinstance(call("verify", bundle.root).exception, BundleDamaged)
    if name in ("manifest.json", "run.json"):
        with pytest.raises(BundleError, match="cannot be read"):
            Bundle.open(bundle.root).json("run.json")
