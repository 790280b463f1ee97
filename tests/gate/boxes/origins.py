"""What stands for the world's services: an index of Python packages, an npm registry, a git host, an apt archive."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

from http_rig import Answer, say

NOT_FOUND = b"404 Not Found"


def files(content: dict[str, tuple[bytes, str]]) -> Answer:
    """A server of fixed content: path to bytes and type."""

    async def answer(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        path = head.split()[1].decode().partition("?")[0]
        found = content.get(path)
        if found is None:
            await say(writer, b"nothing here\n", status=NOT_FOUND)
        else:
            await say(writer, found[0], b"Content-Type: " + found[1].encode())

    return answer


def wheel(name: str, version: str, source: str) -> bytes:
    """A package of one module."""
    made = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_hash(text.encode())},{len(text)}\n" for path, text in content.items())
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return made.getvalue()


def python_index(host: str, versions: dict[str, str]) -> Answer:
    """A simple index with one package, ``caissonthing``; versions to upload times."""
    content: dict[str, tuple[bytes, str]] = {}
    listed = []
    for version, uploaded in versions.items():
        made = wheel("caissonthing", version, f"VERSION = {version!r}\n")
        filename = f"caissonthing-{version}-py3-none-any.whl"
        content[f"/files/{filename}"] = (made, "application/octet-stream")
        listed.append(
            {
                "filename": filename,
                "url": f"https://{host}/files/{filename}",
                "hashes": {"sha256": hashlib.sha256(made).hexdigest()},
                "upload-time": uploaded,
                "size": len(made),
            }
        )
    page = {"meta": {"api-version": "1.1"}, "name": "caissonthing", "versions": list(versions), "files": listed}
    content["/simple/caissonthing/"] = (json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")
    return files(content)


def npm_registry(host: str) -> Answer:
    """A registry with one package, ``caisson-thing``."""
    manifest = {"name": "caisson-thing", "version": "1.0.0", "main": "index.js"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in (("package.json", json.dumps(manifest)), ("index.js", "module.exports = 'thing 1.0.0'\n")):
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    tarball = packed.getvalue()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    dist = {"tarball": f"https://{host}/caisson-thing/-/caisson-thing-1.0.0.tgz", "integrity": integrity}
    packument = {
        "name": "caisson-thing",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**manifest, "dist": dist}},
        "time": {"created": "2024-01-01T00:00:00.000Z", "1.0.0": "2024-01-01T00:00:00.000Z"},
    }
    return files(
        {
            "/caisson-thing": (json.dumps(packument).encode(), "application/json"),
            "/caisson-thing/-/caisson-thing-1.0.0.tgz": (tarball, "application/octet-stream"),
        }
    )


def git_host(folder: Path) -> Answer:
    """Serves the bare repositories of a folder with git's own HTTP backend."""

    async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split()
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        path, _, query = target.partition("?")
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": method,
            "CONTENT_TYPE": fields.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": fields.get("git-protocol", ""),
            "HTTP_CONTENT_ENCODING": fields.get("content-encoding", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate(body)
        made, _, content = out.partition(b"\r\n\r\n")
        status, headers = b"200 OK", []
        for line in made.split(b"\r\n"):
            if line.lower().startswith(b"status:"):
                status = line[7:].strip()
            else:
                headers.append(line)
        await say(writer, content, *headers, status=status)

    return answer


def repository(folder: Path, name: str) -> Path:
    """A bare repository with one commit."""
    work, bare = folder / "work", folder / name
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@caisson.test", "-c", "init.defaultBranch=main")
    for command in (
        ("init", "-q", str(work)),
        ("-C", str(work), "commit", "-q", "--allow-empty", "-m", "the first commit"),
        ("clone", "-q", "--bare", str(work), str(bare)),
    ):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return bare


def apt_archive() -> Answer:
    """A flat archive with one package, ``caisson-thing``."""
    control = _tar(
        {"./control": "Package: caisson-thing\nVersion: 1.0\nArchitecture: all\nMaintainer: t\nDescription: t\n"}
    )
    data = _tar({"./usr/share/caisson-thing": "thing 1.0\n"})
    deb = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("control.tar.gz", control), ("data.tar.gz", data)):
        deb += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        deb += b"\n" * (len(content) % 2)
    packages = (
        "Package: caisson-thing\nVersion: 1.0\nArchitecture: all\nMaintainer: t\nDescription: t\n"
        f"Filename: ./caisson-thing_1.0_all.deb\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n\n"
    ).encode()
    packed = gzip.compress(packages, mtime=0)
    release = "Date: Mon, 01 Jan 2024 00:00:00 UTC\nSHA256:\n"
    for name, content in (("Packages", packages), ("Packages.gz", packed)):
        release += f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
    return files(
        {
            "/./Release": (release.encode(), "text/plain"),
            "/Release": (release.encode(), "text/plain"),
            "/./Packages.gz": (packed, "application/gzip"),
            "/Packages.gz": (packed, "application/gzip"),
            "/caisson-thing_1.0_all.deb": (deb, "application/octet-stream"),
            "/./caisson-thing_1.0_all.deb": (deb, "application/octet-stream"),
        }
    )


def _tar(content: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in content.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
