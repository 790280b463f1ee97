"""Package indexes as they were at a moment: what was uploaded later is taken out of their pages. Pure.

Only fields that are known are kept, because an index adds new ones and they speak of today. What has no date is taken
out as well, unless the policy lets it pass.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

from caisson_gate.names import canonical_host
from caisson_gate.paths import MalformedPath, canonical_path

SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
MAX_PAGE = 64 << 20
"""Larger index pages are not read, in bytes."""


class Undated(ValueError):
    """The page says of nothing on it when it was made, or is none that can be read."""


@dataclass(frozen=True, slots=True)
class Page:
    """An index page as it is served: nothing newer than the cut-off. ``files`` are keys of what it links to."""

    body: bytes
    content_type: str
    kept: int
    removed: int
    files: frozenset[bytes]


def file_key(host: str, port: int, path: bytes) -> bytes:
    """What a file is known by: where it is, in canonical form, without a query."""
    return f"{host}:{port}".encode() + path


def python_page(body: bytes, url: str, cutoff: datetime, undated: bool, as_html: bool) -> Page:
    """A simple page in JSON (PEP 691 with the upload times of PEP 700), or a project's JSON document."""
    page = _object(body)
    if isinstance(page.get("files"), list):
        return _simple(page, url, cutoff, undated, as_html)
    if isinstance(page.get("urls"), list):
        return _project(page, url, cutoff, undated)
    raise Undated("this page of a Python index carries no upload times")


def _simple(page: Mapping[str, Any], url: str, cutoff: datetime, undated: bool, as_html: bool) -> Page:
    files = [file for file in page["files"] if isinstance(file, dict) and isinstance(file.get("url"), str)]
    if files and not undated and not any("upload-time" in file for file in files):
        raise Undated("this page of a Python index carries no upload times")
    kept = [file for file in files if _old(file.get("upload-time"), cutoff, undated)]
    keys = set()
    for file in kept:
        key = _key(url, file["url"])
        if key is not None:
            keys.add(key)
            if file.get("core-metadata") or file.get("data-dist-info-metadata") or file.get("dist-info-metadata"):
                keys.add(key + b".metadata")
    meta = page.get("meta")
    version = meta.get("api-version", "1.1") if isinstance(meta, dict) else "1.1"
    served: dict[str, Any] = {"meta": {"api-version": version}, "name": page.get("name"), "files": kept}
    if isinstance(page.get("versions"), list):
        served["versions"] = [one for one in page["versions"] if isinstance(one, str) and _has_file(one, kept)]
    removed = len(page["files"]) - len(kept)
    if as_html:
        return Page(_html(str(page.get("name")), kept), "text/html; charset=utf-8", len(kept), removed, frozenset(keys))
    return Page(_json(served), SIMPLE_JSON, len(kept), removed, frozenset(keys))


def _has_file(version: str, files: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a file of this version is among them, by its name; file names spell - as _ here and there."""
    wanted = version.replace("-", "_").lower()
    for file in files:
        name = str(file.get("filename", "")).replace("-", "_").lower()
        if f"_{wanted}_" in name or f"_{wanted}." in name:
            return True
    return False


def _html(name: str, files: Iterable[Mapping[str, Any]]) -> bytes:
    """The same page for clients that read PEP 503."""
    lines = ["<!DOCTYPE html>", "<html><head>", '<meta name="pypi:repository-version" content="1.0">']
    lines.append(f"<title>Links for {html.escape(name)}</title></head><body>")
    for file in files:
        hashes = file.get("hashes")
        digest = next(iter(hashes.items()), None) if isinstance(hashes, dict) else None
        link = str(file["url"]) + (f"#{digest[0]}={digest[1]}" if digest else "")
        attributes = f'href="{html.escape(link)}"'
        if isinstance(file.get("requires-python"), str):
            attributes += f' data-requires-python="{html.escape(file["requires-python"])}"'
        if file.get("yanked"):
            attributes += f' data-yanked="{html.escape(str(file["yanked"]))}"'
        lines.append(f"<a {attributes}>{html.escape(str(file.get('filename', '')))}</a><br>")
    return "\n".join([*lines, "</body></html>", ""]).encode("utf-8", "replace")


def _project(page: Mapping[str, Any], url: str, cutoff: datetime, undated: bool) -> Page:
    """`/pypi/NAME/json` and `/pypi/NAME/VERSION/json`: files by release, and what the newest one says of itself."""
    keys: set[bytes] = set()
    removed = 0

    def sift(files: Any) -> list[Any]:
        nonlocal removed
        listed = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
        kept = [file for file in listed if _old(_uploaded(file), cutoff, undated)]
        removed += len(listed) - len(kept)
        keys.update(key for file in kept if (key := _key(url, str(file.get("url")))) is not None)
        return kept

    releases = page.get("releases")
    served: dict[str, Any] = {"vulnerabilities": []}
    own = sift(page["urls"])
    if not isinstance(releases, dict):
        if not own:
            raise Undated("this release is newer than the cut-off, or has no date")
        return Page(
            _json({"info": page.get("info"), "urls": own, **served}),
            "application/json",
            len(own),
            removed,
            frozenset(keys),
        )
    removed = 0
    sifted = {version: kept for version, files in releases.items() if (kept := sift(files))}
    info = page.get("info") if isinstance(page.get("info"), dict) else {}
    assert isinstance(info, dict)
    if removed or str(info.get("version")) not in sifted:
        newest = max(sifted, key=lambda version: max(str(_uploaded(file)) for file in sifted[version]), default=None)
        info = {**dict.fromkeys(info), "name": info.get("name"), "version": newest, "classifiers": [], "yanked": False}
        own = sifted.get(newest, []) if newest is not None else []
    served |= {"info": info, "releases": sifted, "urls": own}
    count = sum(len(files) for files in sifted.values())
    return Page(_json(served), "application/json", count, removed, frozenset(keys))


def _uploaded(file: Mapping[str, Any]) -> Any:
    return file.get("upload_time_iso_8601") or file.get("upload_time")


_MANIFEST_LATER = ("deprecated", "readme", "_hasShrinkwrap")
"""Of a version's manifest: what is said of it afterwards."""


def npm_page(body: bytes, url: str, cutoff: datetime, undated: bool) -> Page:
    """A packument: the full one, for only that has times; the abbreviated one is undated."""
    page = _object(body)
    versions, times = page.get("versions"), page.get("time")
    if not isinstance(versions, dict) or not (isinstance(times, dict) or undated):
        raise Undated("this document of an npm registry carries no times of its versions")
    times = times if isinstance(times, dict) else {}
    kept = {
        version: {key: value for key, value in manifest.items() if key not in _MANIFEST_LATER}
        for version, manifest in versions.items()
        if isinstance(manifest, dict) and _old(times.get(version), cutoff, undated)
    }
    dated = {version: str(times[version]) for version in kept if version in times}
    tags = page.get("dist-tags")
    served_tags = {}
    if isinstance(tags, dict):
        served_tags = {tag: to for tag, to in tags.items() if isinstance(to, str) and to in kept}
    if "latest" not in served_tags and kept:
        stable = [version for version in kept if "-" not in version] or list(kept)
        served_tags["latest"] = max(stable, key=lambda version: dated.get(version, ""))
    ends = {"modified": max(dated.values())} if dated else {}
    if _old(times.get("created"), cutoff, False):
        ends["created"] = str(times["created"])
    served = {
        "_id": page.get("_id"),
        "name": page.get("name"),
        "dist-tags": served_tags,
        "versions": kept,
        "time": {**ends, **dated},
    }
    keys = set()
    for manifest in kept.values():
        dist = manifest.get("dist")
        if isinstance(dist, dict) and isinstance(dist.get("tarball"), str):
            key = _key(url, dist["tarball"])
            keys |= set() if key is None else {key}
    return Page(_json(served), "application/json", len(kept), len(versions) - len(kept), frozenset(keys))


def _object(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_PAGE:
        raise Undated("this index page is too large to be read")
    try:
        page = json.loads(body)
    except (ValueError, RecursionError):
        raise Undated("this index page is no JSON, so it carries no dates") from None
    if not isinstance(page, dict):
        raise Undated("this index page carries no dates")
    return page


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _old(value: Any, cutoff: datetime, undated: bool) -> bool:
    """Whether it was there at the cut-off; what has no date counts as ``undated`` says."""
    if not isinstance(value, str):
        return undated
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) <= cutoff
    except (ValueError, OverflowError):
        return undated


def _key(base: str, link: str) -> bytes | None:
    """The key of a linked file; None for a link that no request can be for."""
    try:
        parts = urlsplit(urljoin(base, link))
        host = canonical_host((parts.hostname or "").encode())
        if host is None or parts.scheme not in ("http", "https"):
            return None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return file_key(host.text, port, canonical_path(parts.path.encode()))
    except (ValueError, MalformedPath):
        return None


Reader = Callable[[bytes, str, datetime, bool], Page]
