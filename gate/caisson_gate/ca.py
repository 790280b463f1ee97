"""The run's own certificate authority, and what makes a box trust it.

The key is made for one run, lives two days and never leaves the memory of the gate process. Most clients' variables
*replace* their trust store, so they point at the system's certificates with ours added, never at ours alone.
"""

from __future__ import annotations

import datetime
import hashlib
import ssl
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE: Final = datetime.timedelta(days=2)
SKEW: Final = datetime.timedelta(days=1)
"""How far a clock in the box may be behind."""
KEPT_LEAVES: Final = 1024
SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where the box finds system and gate certificates together: Debian's place, which OpenSSL, GnuTLS and Go look at."""
ALONE: Final = "/etc/ssl/certs/caisson-gate.pem"
JAVA_STORE: Final = "/etc/ssl/certs/java/cacerts"
_REPLACING: Final = (
    "SSL_CERT_FILE",  # OpenSSL, Go, Ruby, uv, httpx
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "npm_config_cafile",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "NIX_SSL_CERT_FILE",
    "BUNDLE_SSL_CA_CERT",
)
_ADDING: Final = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
_JAVA_PASSWORD: Final = "changeit"  # noqa: S105 - every JDK's published default; it protects nothing


@dataclass(frozen=True, slots=True)
class Trust:
    """What a box gets so that its programs accept the gate's certificates."""

    files: Mapping[str, bytes]
    """Path in the box to content, to be readable by everybody."""
    env: Mapping[str, str]


class Authority:
    """A certificate authority for one run. Its private key cannot be asked for."""

    def __init__(self, run: str) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self._from, self._until = now - SKEW, now + LIFE
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, x509.Certificate] = OrderedDict()
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Caisson"),
                x509.NameAttribute(NameOID.COMMON_NAME, f"Caisson gate, run {run}"[:64]),
            ]
        )
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self.certificate = (
            self._builder(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(certificates=True), critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def leaf_key(self) -> ec.EllipticCurvePrivateKey:
        """The key of every leaf: it proves nothing outside the run's boxes."""
        return self._leaf_key

    def leaf(self, host: str) -> x509.Certificate:
        """A certificate for one canonical host name or address."""
        known = self._leaves.get(host)
        if known is not None:
            self._leaves.move_to_end(host)
            return known
        try:
            alternative: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)] if len(host) <= 64 else [])
        made = (
            self._builder(subject, self.certificate.subject, self._leaf_key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=not subject.rdns)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self._leaves[host] = made
        if len(self._leaves) > KEPT_LEAVES:
            self._leaves.popitem(last=False)
        return made

    def trust(self, system: bytes | None = None) -> Trust:
        """Files and variables for a box; ``system`` are the certificates it trusted before (the host's by default)."""
        bundle = (system_bundle() if system is None else system).rstrip(b"\n") + b"\n" + self.pem
        files = {BUNDLE: bundle, ALONE: self.pem, JAVA_STORE: java_store(bundle)}
        env = {**dict.fromkeys(_REPLACING, BUNDLE), **dict.fromkeys(_ADDING, ALONE), "UV_NATIVE_TLS": "1"}
        return Trust(files, env)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
        )


def system_bundle() -> bytes:
    """The host's trusted certificates; empty where it has none."""
    found = ssl.get_default_verify_paths().cafile
    for place in (*SYSTEM_BUNDLES, *((found,) if found else ())):
        try:
            return Path(place).read_bytes()
        except OSError:
            continue
    return b""


def java_store(bundle: bytes) -> bytes:
    """The certificates as a JKS trust store, which every JDK reads (format of the JDK's ``JavaKeyStore``)."""
    certificates = x509.load_pem_x509_certificates(bundle)
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        content = certificate.public_bytes(serialization.Encoding.DER)
        body += struct.pack(">I", 2) + _utf(f"caisson-{number}") + struct.pack(">Q", 0)
        body += _utf("X.509") + struct.pack(">I", len(content)) + content
    guard = hashlib.sha1(_JAVA_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body)  # noqa: S324 - the format's
    return body + guard.digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )
