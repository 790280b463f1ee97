"""Harbor's `task.toml`: read strictly by type, unknown keys kept and reported, legacy names understood.

Field names, defaults and aliases are those of harbor 0.26.0. What Caisson cannot do is refused by name here,
before any box is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from caisson_runner.tasks.errors import TaskMalformed, UnsupportedTask
from caisson_runner.tasks.table import Table

NETWORK_MODES = ("public", "no-network", "allowlist")
DEFAULT_VERIFIER_TIMEOUT_S = 600.0  # harbor 0.26.0


@dataclass(frozen=True, slots=True)
class HarborTask:
    """What a `task.toml` says, with Harbor's defaults filled in. Sizes in MiB, times in seconds."""

    name: str | None
    description: str
    agent_timeout_s: float | None
    verifier_timeout_s: float
    verifier_env: Mapping[str, str]
    verifier_separate: bool
    build_timeout_s: float
    docker_image: str | None
    cpus: float | None
    memory_mb: int | None
    storage_mb: int | None
    env: Mapping[str, str]
    workdir: str | None
    network_mode: str
    allowed_hosts: tuple[str, ...]
    blocked_hosts: tuple[str, ...]
    solution_env: Mapping[str, str]
    artifacts: tuple[str, ...]
    metadata: Mapping[str, object]
    warnings: tuple[str, ...]
    unknown: Mapping[str, object] = field(default_factory=dict)


def resolve(template: str, environ: Mapping[str, str] = os.environ) -> str:
    """Fill `${VAR}` and `${VAR:-default}` from the host. A missing variable without default raises KeyError."""

    def one(match: re.Match[str]) -> str:
        name, default = match[1], match[3]
        value = environ.get(name)
        if value:
            return value
        if default is not None:
            return default
        if value is None:
            raise KeyError(name)
        return value

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}", one, template)


def resolve_env(env: Mapping[str, str], file: Path, where: str) -> dict[str, str]:
    """Resolve a table of templates; a variable the host lacks is the user's mistake and named."""
    resolved = {}
    for key, template in env.items():
        try:
            resolved[key] = resolve(template)
        except KeyError as missing:
            raise TaskMalformed(
                file, f"{where}.{key}", f"${{{missing.args[0]}}} is not set on this host and has no default"
            ) from None
    return resolved


def megabytes(table: Table, new: str, old: str) -> int | None:
    """`memory_mb`, or the legacy `memory = "2G"`; both at once is Harbor's error too."""
    value, legacy = table.integer(new, least=1), table.text(old)
    if legacy is None:
        return value
    if value is not None:
        raise table.wrong(old, f"conflicts with {new}; keep one")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([GMK])i?B?\s*", legacy, re.IGNORECASE)
    if match is None:
        raise table.wrong(old, f"must be a size such as 2G or 512M, is {legacy!r}")
    scale = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}[match[2].upper()]
    return max(1, int(float(match[1]) * scale))


def _network(table: Table, warnings: list[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    mode, hosts, blocked = table.text("network_mode"), table.texts("allowed_hosts"), table.texts("blocked_hosts")
    table.get("blocked_urls")
    internet = table.flag("allow_internet", True)
    if mode == "denylist" or blocked:
        warnings.append(f"{table.name('network_mode')}: denylist is a dialect stock Harbor rejects")
        mode = mode or "denylist"
    elif mode is not None and mode not in NETWORK_MODES:
        raise table.wrong("network_mode", f"must be one of {', '.join(NETWORK_MODES)}; is {mode!r}")
    if hosts and mode != "allowlist":
        raise table.wrong("allowed_hosts", 'needs network_mode = "allowlist"')
    if mode is None:
        mode = "public" if internet else "no-network"
    return mode, hosts, blocked


def _steps_refused(root: Table) -> None:
    if root.has("steps"):
        raise UnsupportedTask(f"{root.file}: [[steps]]: multi-step tasks are not supported yet; split it into tasks")


def _environment_refused(table: Table) -> None:
    def refuse(key: str, why: str) -> UnsupportedTask:
        return UnsupportedTask(f"{table.file}: {table.name(key)}: {why}")

    system = table.text("os", "linux") or "linux"
    if system.lower() == "windows":
        raise refuse("os", "windows tasks cannot run in a Linux box")
    if system.lower() != "linux":
        raise table.wrong("os", f"must be linux or windows, is {system!r}")
    if table.integer("gpus", 0):
        raise refuse("gpus", "a box has no GPU; set gpus = 0 or run the task elsewhere")
    if table.texts("gpu_types"):
        raise refuse("gpu_types", "a box has no GPU")
    if table.has("tpu"):
        raise refuse("tpu", "a box has no TPU")
    if table.tables("mcp_servers"):
        raise refuse("mcp_servers", "MCP servers are not started in boxes yet")
    if table.text("skills_dir"):
        raise refuse("skills_dir", "skills are not uploaded to boxes yet")
    if table.has("healthcheck"):
        raise refuse("healthcheck", "healthchecks need a service running before the agent; not supported yet")


def _verifier(root: Table, warnings: list[str]) -> tuple[float, dict[str, str], bool]:
    table = root.table("verifier")
    if table is None:
        return DEFAULT_VERIFIER_TIMEOUT_S, {}, False
    if table.has("environment"):
        raise UnsupportedTask(f"{table.file}: verifier.environment: own verifier images are not supported yet")
    if table.tables("collect"):
        raise UnsupportedTask(f"{table.file}: verifier.collect: collect hooks are not supported yet")
    mode = table.choice("environment_mode", ("shared", "separate"))
    _user(table)
    if table.has("hardening"):
        table.get("hardening")
        warnings.append("verifier.hardening: a dialect's key; Caisson always grades in a separate box")
    if any(table.has(key) for key in ("network_mode", "allowed_hosts")):
        _network(table, warnings)
        warnings.append("verifier.network_mode: counts for the check in the agent's box; rooms that grade have none")
    timeout = table.number("timeout_sec", DEFAULT_VERIFIER_TIMEOUT_S)
    assert timeout is not None
    env = table.strings("env")
    warnings.extend(f"unknown key {name}" for name in table.unknown())
    return timeout, env, mode == "separate"


def _user(table: Table) -> None:
    user = table.get("user")
    if user is None:
        return
    if isinstance(user, bool) or not isinstance(user, (str, int)):
        raise table.wrong("user", "must be a user name or a uid")
    if user not in ("root", 0):
        raise UnsupportedTask(f"{table.file}: {table.name('user')}: a box has only root; remove user = {user!r}")


def _artifacts(root: Table) -> tuple[str, ...]:
    value = root.get("artifacts")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise root.wrong("artifacts", "must be a list")
    sources = []
    for entry in value:
        source = entry.get("source") if isinstance(entry, dict) else entry
        if not isinstance(source, str) or ".." in source.split("/"):
            raise root.wrong("artifacts", "each entry is a path, or a table with a source path, without '..'")
        sources.append(source)
    return tuple(sources)


def read_task_toml(file: Path) -> HarborTask:
    """Read and check one `task.toml`. Raises TaskMalformed or UnsupportedTask."""
    root = Table.read(file, TaskMalformed)
    warnings: list[str] = []
    version = root.text("schema_version") or root.text("version") or "1.4"
    root.known |= {"version", "schema_version", "source"}
    if not re.fullmatch(r"1(\.\d+)?", version):
        raise root.wrong("schema_version", f"must be a 1.x version, is {version!r}")
    _steps_refused(root)
    root.choice("multi_step_reward_strategy", ("mean", "final"))

    name, description = None, ""
    if (task := root.table("task")) is not None:
        name = task.need_text("name")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise task.wrong("name", f'must read "org/name", is {name!r}')
        description = task.text("description") or ""
        task.text("version")
        task.tables("authors")
        task.texts("keywords")
        warnings.extend(f"unknown key {key}" for key in task.unknown())
    metadata = root.table("metadata")

    agent_timeout = None
    if (agent := root.table("agent")) is not None:
        agent_timeout = agent.number("timeout_sec")
        _user(agent)
        if any(agent.has(key) for key in ("network_mode", "allowed_hosts")):
            _network(agent, warnings)
        warnings.extend(f"unknown key {key}" for key in agent.unknown())

    verifier_timeout, verifier_env, separate = _verifier(root, warnings)
    solution = root.table("solution")
    solution_env = solution.strings("env") if solution is not None else {}
    if solution is not None:
        warnings.extend(f"unknown key {key}" for key in solution.unknown())

    environment = root.table("environment") or Table({}, file=file, path=("environment",), error=TaskMalformed)
    _environment_refused(environment)
    mode, hosts, blocked = _network(environment, warnings)
    build_timeout = environment.number("build_timeout_sec", 600.0)
    assert build_timeout is not None
    harbor = HarborTask(
        name=name,
        description=description,
        agent_timeout_s=agent_timeout,
        verifier_timeout_s=verifier_timeout,
        verifier_env=verifier_env,
        verifier_separate=separate,
        build_timeout_s=build_timeout,
        docker_image=environment.text("docker_image"),
        cpus=environment.number("cpus"),
        memory_mb=megabytes(environment, "memory_mb", "memory"),
        storage_mb=megabytes(environment, "storage_mb", "storage"),
        env=environment.strings("env"),
        workdir=_workdir(environment),
        network_mode=mode,
        allowed_hosts=hosts,
        blocked_hosts=blocked,
        solution_env=solution_env,
        artifacts=_artifacts(root),
        metadata=dict(metadata.values) if metadata is not None else {},
        warnings=(),
    )
    warnings.extend(f"unknown key {key}" for key in (*environment.unknown(), *root.unknown()))
    unknown = {key: root.values[key] for key in root.values if key not in root.known}
    return replace(harbor, warnings=tuple(warnings), unknown=unknown)


def _workdir(table: Table) -> str | None:
    workdir = table.text("workdir")
    if workdir is not None and (not workdir.startswith("/") or ".." in workdir.split("/")):
        raise table.wrong("workdir", f"must be an absolute path without '..', is {workdir!r}")
    return workdir
