"""The run's authority: trusted by real clients' own stores, gone with the run."""

from __future__ import annotations

import datetime
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from caisson_gate.ca import ALONE, BUNDLE, JAVA_STORE, LIFE, Authority, java_store
from cryptography import x509
from cryptography.hazmat.primitives import serialization


def test_the_authority_lives_two_days_and_signs_no_other_authority() -> None:
    made = Authority("run-1").certificate
    left = made.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert LIFE - datetime.timedelta(minutes=5) < left <= LIFE
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_two_runs_have_two_authorities() -> None:
    assert Authority("r").pem != Authority("r").pem


@pytest.mark.parametrize("host", ["a.test", "xn--nxasmq6b.test", "192.0.2.1", "2001:db8::1", "a." * 100 + "test"])
def test_openssl_accepts_a_leaf_for_its_host_only(tmp_path: Path, host: str) -> None:
    authority = Authority("r")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "leaf.pem").write_bytes(authority.leaf(host).public_bytes(serialization.Encoding.PEM))
    what = "-verify_ip" if host[0].isdigit() else "-verify_hostname"

    def verify(name: str) -> int:
        command = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", what, name, "leaf.pem"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    assert verify(host) == 0
    assert verify("192.0.2.99" if host[0].isdigit() else "b.test") != 0


def test_a_leaf_is_made_once() -> None:
    authority = Authority("r")
    assert authority.leaf("a.test") is authority.leaf("a.test")
    assert authority.leaf("a.test") != authority.leaf("b.test")


def test_the_box_keeps_what_it_trusted_before() -> None:
    authority, system = Authority("r"), Authority("the host's own")
    trust = authority.trust(system.pem)
    assert trust.files[BUNDLE] == system.pem + authority.pem
    assert trust.files[ALONE] == authority.pem
    context = ssl.create_default_context(cadata=trust.files[BUNDLE].decode())
    assert len(context.get_ca_certs()) == 2
    assert trust.env["SSL_CERT_FILE"] == trust.env["PIP_CERT"] == trust.env["GIT_SSL_CAINFO"] == BUNDLE
    assert trust.env["NODE_EXTRA_CA_CERTS"] == ALONE
    assert JAVA_STORE in trust.files


@pytest.mark.skipif(shutil.which("keytool") is None, reason="no JDK on this machine")
def test_the_java_store_is_read_by_keytool(tmp_path: Path) -> None:
    authority = Authority("r")
    (tmp_path / "cacerts").write_bytes(java_store(authority.pem))
    command = ["keytool", "-list", "-v", "-keystore", "cacerts", "-storepass", "changeit"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "trustedCertEntry" in listed and "Caisson gate, run r" in listed
