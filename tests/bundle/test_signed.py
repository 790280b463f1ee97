"""The statement as tools that we did not write see it, and the key it is signed with."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bundle_sample as sample
import google.protobuf.json_format as protobuf_json
import pytest
from caisson_runner.bundle import Bundle
from caisson_runner.bundle.check import verify
from caisson_runner.bundle.dsse import Envelope, pre_auth
from caisson_runner.bundle.errors import BundleError, KeyFault
from caisson_runner.bundle.keys import PublicKey, Signer, known, own, publish, read_public
from caisson_runner.bundle.statement import STATEMENT
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

SIGNER = Signer.of(bytes(range(32)))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return sample.bundle(tmp_path / "b", signer=SIGNER)


def their_key(signer: Signer) -> SSlibKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return SSlibKey.from_crypto(load_pem_public_key(signer.public.pem.encode()))  # type: ignore[arg-type]


def test_securesystemslib_verifies_the_envelope_and_refuses_a_changed_one(bundle: Bundle) -> None:
    text = (bundle.root / STATEMENT).read_bytes()
    envelope = TheirEnvelope.from_dict(json.loads(text))
    assert envelope.payload_type == "application/vnd.in-toto+json"
    assert list(envelope.verify([their_key(SIGNER)], 1)) == [SIGNER.public.keyid]
    envelope.payload = envelope.payload.replace(b'"fail"', b'"pass"')
    with pytest.raises(VerificationError):
        envelope.verify([their_key(SIGNER)], 1)
    with pytest.raises(VerificationError):
        TheirEnvelope.from_dict(json.loads(text)).verify([their_key(Signer.of(bytes(32)))], 1)


def test_our_key_is_named_and_written_as_securesystemslib_does() -> None:
    theirs = their_key(SIGNER)
    assert theirs.keyid == SIGNER.public.keyid
    assert theirs.to_dict() == SIGNER.public.to_json()
    assert PublicKey.parse(theirs.to_dict()) == SIGNER.public


def test_in_toto_attestation_takes_the_payload_for_a_statement(bundle: Bundle) -> None:
    payload = Envelope.parse((bundle.root / STATEMENT).read_bytes(), STATEMENT).payload
    message = protobuf_json.Parse(payload, statement_pb2.Statement())  # refuses fields that a Statement has not
    statement = Statement.copy_from_pb(message)
    statement.validate()
    assert statement.pb.predicate_type == "https://in-toto.io/attestation/runtime-trace/v0.1"
    assert {one.name: dict(one.digest) for one in statement.pb.subject} == {
        "manifest.json": {"sha256": sha256(bundle.root / "manifest.json")},
        "verdict.json": {"sha256": bundle.files["verdict.json"].sha256},
        "witness/events.bin.zst": {"sha256": bundle.files["witness/events.bin.zst"].sha256},
        "state/upper.tar.zst": {"sha256": bundle.files["state/upper.tar.zst"].sha256},
    }


def test_openssl_verifies_the_signature(bundle: Bundle, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    envelope = Envelope.parse((bundle.root / STATEMENT).read_bytes(), STATEMENT)
    (tmp_path / "key.pem").write_text(SIGNER.public.pem)
    (tmp_path / "sig").write_bytes(envelope.signature)
    (tmp_path / "message").write_bytes(pre_auth(envelope.payload))
    command = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        "key.pem",
        "-rawin",
        "-in",
        "message",
        "-sigfile",
        "sig",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Signature Verified Successfully" in done.stdout, done.stderr


def test_predicate_has_what_runtime_trace_requires_and_the_counters(tmp_path: Path) -> None:
    """Source: in-toto/attestation, spec/predicates/runtime-trace.md, v0.1: the fields marked required."""
    predicate = verify(sample.bundle(tmp_path / "b", dropped=3).root).statement["predicate"]
    assert predicate["monitor"]["type"] == "urn:caisson:witness:ebpf:tracepoint:v1"
    assert all(isinstance(predicate["monitoredProcess"][key], str) for key in ("hostID", "type", "event"))
    (log,) = predicate["monitorLog"]["process"]
    assert log["records"] == 17
    assert log["log"]["name"] == "witness/events.bin.zst"
    assert predicate["metadata"] == {
        "buildStartedOn": "2026-11-30T12:00:00.000Z",
        "buildFinishedOn": "2026-11-30T12:00:01.500Z",
    }
    witness = predicate["witness"]
    assert (witness["tier"], witness["complete"], witness["dropped"]) == ("tracepoint", False, 3)
    assert witness["emitted"] == witness["delivered"] + witness["dropped"] + witness["unreadable"]
    assert witness["classes"]["open"] == {
        "seen": 5, "delivered": 2, "dropped_ring": 3, "dropped_map": 0, "unreadable": 0, "partial": 0,
    }  # fmt: skip
    assert predicate["caisson"]["verdict"] == {"word": "fail", "lie": True, "findings": ["test-config-written"]}
    assert len(predicate["caisson"]["programs"]["digest"]["sha256"]) == 64


def test_same_run_signed_by_the_same_key_has_the_same_bytes(tmp_path: Path) -> None:
    one, two = (sample.bundle(tmp_path / name, signer=SIGNER) for name in "ab")
    for name in ("manifest.json", STATEMENT, "seal.json"):
        assert (one.root / name).read_bytes() == (two.root / name).read_bytes()


def test_envelope_has_one_text(bundle: Bundle) -> None:
    text = (bundle.root / STATEMENT).read_bytes()
    assert Envelope.parse(text, "x").dumps() == text
    for other in (json.dumps(json.loads(text)).encode(), text + b" ", b"{}", b"[]", b"", text.replace(b"sig", b"sog")):
        with pytest.raises(BundleError):
            Envelope.parse(other, "x")


def test_key_is_made_on_first_use_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    assert list(known(tmp_path)) == []
    first = own(tmp_path)
    place = tmp_path / "keys/signing.key"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert own(tmp_path).public == first.public
    assert own(tmp_path / "other").public != first.public
    assert repr(first.seed.value)[2:-1] not in repr(first)
    assert [key for _where, key in known(tmp_path)] == [first.public]


def test_many_runs_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: own(tmp_path).public, range(32)))
    assert len(set(keys)) == 1
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == ["signing.key"]


def test_key_file_is_one_that_others_read(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    signer = own(tmp_path)
    theirs = load_pem_private_key((tmp_path / "keys/signing.key").read_bytes(), None)
    assert isinstance(theirs, Ed25519PrivateKey)
    assert theirs.private_bytes_raw() == signer.seed.value
    assert read_public(publish(signer, tmp_path)) == signer.public


def test_key_that_others_can_read_or_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    own(tmp_path)
    place = tmp_path / "keys/signing.key"
    place.chmod(0o640)
    with pytest.raises(KeyFault, match="chmod 600"):
        own(tmp_path)
    place.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    place.chmod(0o600)
    with pytest.raises(KeyFault, match="is no ed25519 private key"):
        own(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(KeyFault, match=r"CAISSON_HOME|cannot be read"):
        own(tmp_path / "file")


def test_keys_of_others_are_known_once_put_there(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "home/keys/known"
    folder.mkdir(parents=True)
    assert verify(bundle.root, known(tmp_path / "home")).signer == ""
    (folder / "ci.pub").write_text(SIGNER.public.pem)
    assert verify(bundle.root, known(tmp_path / "home")).signer == "ci.pub"


def sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_unreadable_store_is_told_before_the_run_not_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caisson_runner.bundle import BundleWriter

    (tmp_path / "file").touch()
    monkeypatch.setenv("CAISSON_HOME", os.fspath(tmp_path / "file"))
    with pytest.raises(KeyFault):
        BundleWriter(tmp_path / "b")
    assert not (tmp_path / "b.partial").exists()
