"""The bundles `pip`, `npm` and `apt`: the indexes that this host's own clients are set up to use, read at run time.

No index stands in this source tree. Where a client is not set up, the client itself is asked for its default.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from caisson_gate.names import MalformedName, parse_host
from caisson_gate.paths import Glob, MalformedPath
from caisson_gate.patterns import BadPattern, HostPattern
from caisson_gate.rules import Rule

ASK_S = 30.0
"""How long a client may take to tell its settings."""
MOST = 1 << 20
"""Of a settings file, in bytes."""

Ask = Callable[[list[str]], str]


@dataclass(frozen=True, slots=True)
class Client:
    """Where settings are read from: environment, file system below ``root``, and the clients themselves."""

    environment: Mapping[str, str]
    root: Path
    ask: Ask

    def file(self, path: str) -> str:
        """A settings file's text, "" when it is not there."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(MOST).decode("utf-8", "replace")
        except OSError:
            return ""

    def home(self, path: str) -> str:
        """A settings file below the home folder."""
        home = self.environment.get("HOME", "")
        return self.file(f"{home}/{path}") if home else ""


def named_rules(
    name: str, environment: Mapping[str, str] | None = None, client: Client | None = None
) -> list[Rule] | None:
    """The rules of one of these bundles, None for another name. ValueError when this host has no such client."""
    makers = {"pip": _pip, "npm": _npm, "apt": _apt}
    if name not in makers:
        return None
    found = client or Client(os.environ if environment is None else environment, Path("/"), _ask)
    rules = makers[name](found)
    if not rules:
        raise ValueError(
            f"has nothing to stand for: no index of {name} is set up on this host; write rules of your own"
        )
    return rules


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=ASK_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:MOST].decode("utf-8", "replace")


def _pip(client: Client) -> list[Rule]:
    settings = [client.environment.get("PIP_CONFIG_FILE", "")]
    texts = [client.file(path) for path in settings if path and path != os.devnull]
    texts += [client.file("/etc/pip.conf"), client.file("/etc/xdg/pip/pip.conf")]
    texts += [client.home(".config/pip/pip.conf"), client.home(".pip/pip.conf")]
    main: list[str] = []
    extra: list[str] = []
    for text in texts:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for section in ("global", "install", "download"):
            main += parser.get(section, "index-url", fallback="").split()
            extra += parser.get(section, "extra-index-url", fallback="").split()
    for key in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        main += client.environment.get(key, "").split()
    for key in ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"):
        extra += [
            entry.rpartition("=")[2] if "=" in entry.partition("//")[0] else entry
            for entry in client.environment.get(key, "").split()
        ]
    default, *files = client.ask(["python3", "-c", _PIP_DEFAULTS]).split() or [""]
    if not main and default:
        main = [default]
    if _host(default) not in [_host(url) for url in main + extra]:
        files = []
    rules = _rules("pip-index", main + extra, "pypi")
    return rules + _rules("pip-files", files, "files") if rules else []


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


_PIP_DEFAULTS = (
    "from pip._internal.models.index import PyPI as p; print(p.simple_url, 'https://' + p.file_storage_domain + '/')"
)
"""pip's own default index, and the host that one keeps its files on."""


def _npm(client: Client) -> list[Rule]:
    found = [value for key, value in client.environment.items() if key.lower() == "npm_config_registry"]
    told = client.ask(["npm", "config", "list", "--json", "--long"])
    try:
        settings = json.loads(told or "{}")
    except ValueError:
        settings = {}
    if isinstance(settings, dict):
        found += [
            value
            for key, value in settings.items()
            if isinstance(value, str) and (key == "registry" or key.endswith(":registry"))
        ]
    for text in (client.home(".npmrc"), client.file("/etc/npmrc")):
        found += re.findall(r"^\s*(?:@[^:=\s]+:)?registry\s*=\s*(\S+)\s*$", text, re.MULTILINE)
    return _rules("npm-registry", found, "npm")


def _apt(client: Client) -> list[Rule]:
    found: list[str] = []
    folder = client.root / "etc/apt/sources.list.d"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for text in [client.file("/etc/apt/sources.list")] + [
        client.file(f"/etc/apt/sources.list.d/{name}") for name in names if name.endswith(".list")
    ]:
        found += re.findall(r"^\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?(\S+)", text, re.MULTILINE)
    for name in names:
        if name.endswith(".sources"):
            found += _stanzas(client.file(f"/etc/apt/sources.list.d/{name}"))
    return _rules("apt-archive", (url.partition("+")[2] if url.startswith("mirror+") else url for url in found), "apt")


def _stanzas(text: str) -> Iterable[str]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields: dict[str, str] = {}
        key = ""
        for line in lines:
            if line[:1] in (" ", "\t"):
                fields[key] = fields.get(key, "") + " " + line
            else:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value
        if fields.get("enabled", "yes").strip().lower() not in ("no", "false", "0"):
            yield from fields.get("uris", "").split()


def _rules(name: str, urls: Iterable[str], index: str) -> list[Rule]:
    """One rule for each index: its host and port, below its path. A credential in an address is left behind."""
    rules: dict[tuple[str, int, str], Rule] = {}
    for url in urls:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                continue  # a folder of this host, a disc: nothing that the network is needed for
            host = parse_host(parts.hostname.encode())
            port = parts.port or (443 if parts.scheme == "https" else 80)
            below = _below(parts.path, index)
            key = (host.text, port, below)
            number = f"{name}-{len(rules) + 1}" if rules else name
            hosts = () if host.address else (HostPattern.parse(host.text),)
            networks = (ip_network(host.address),) if host.address else ()
            ports, paths = frozenset({port}), (Glob.parse(below),)
            rules.setdefault(key, Rule(number, hosts, networks, ports=ports, paths=paths, index=index))
        except (MalformedName, MalformedPath, BadPattern, ValueError):
            shown = url.rpartition("@")[2][:200]
            raise ValueError(f"cannot be made: no rule can be for {shown!r}, which this host's settings name") from None
    return list(rules.values())


def _below(path: str, index: str) -> str:
    """What a client fetches from an index with this path: of a Python index also what lies beside `simple`."""
    path = path.rstrip("/")
    if index == "pypi" and path.endswith("/simple"):
        path = path.removesuffix("/simple")
    return path + "/**"
