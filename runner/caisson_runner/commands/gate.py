"""`caisson-run gate lint`, `explain` and `convert`: policies on paper, before any box has one."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from caisson_runner.commands.common import emit, say
from caisson_runner.errors import CaissonError
from caisson_runner.report.text import one_line

if TYPE_CHECKING:
    from caisson_gate.policy import Policy


class NoSuchUrl(CaissonError):
    """What was to be explained is no URL."""

    exit_code: ClassVar[int] = 2


def gate_lint_command(path: Path, strict: bool, expand: bool, as_json: bool) -> int:
    """`caisson-run gate lint`."""
    from caisson_gate.document import toml
    from caisson_gate.lint import WARNING, lint

    policy = _policy(path)
    remarks = lint(policy, os.environ)
    grave = sum(remark.level == WARNING for remark in remarks)
    if as_json:
        listed = [{"level": remark.level, "rule": remark.rule, "text": remark.text} for remark in remarks]
        emit({"policy_sha256": policy.sha256, "remarks": listed})
    elif expand:
        sys.stdout.write(toml(policy, (f"{path.name}, bundles expanded; sha256 {policy.sha256}",)))
    if not as_json:
        for remark in remarks:
            about = f"rule {remark.rule}: " if remark.rule else ""
            print(one_line(f"{remark.level}: {about}{remark.text}"), file=sys.stderr if expand else sys.stdout)
        say(
            f"{path}: {policy.network_mode}, {len(policy.deny)} deny and {len(policy.allow)} allow rules, "
            f"{grave} warnings, {len(remarks) - grave} notes; sha256 {policy.sha256[:12]}…"
        )
    return 1 if strict and grave else 0


def gate_explain_command(path: Path, url: str, method: str, phase: str, known: dict[str, Any], as_json: bool) -> int:
    """`caisson-run gate explain`: 0 when the request would pass, 1 when it would be refused."""
    from caisson_gate.explain import NotAUrl, explain

    policy = _policy(path)
    try:
        steps = explain(policy, os.fsencode(url), method.encode(), phase, **known)  # type: ignore[arg-type]
    except NotAUrl as problem:
        raise NoSuchUrl(f"{url!r:.200} is no URL: {problem}") from None
    last = steps[-1].decision
    host = next((step.decision.host for step in reversed(steps) if step.decision.host), None)
    if as_json:
        emit(
            {
                "url": url,
                "allowed": last.allowed,
                "policy_sha256": policy.sha256,
                "host": host.text if host else None,
                "port": last.port,
                "path": last.path.decode("ascii", "replace"),
                "steps": [
                    {
                        "kind": step.kind,
                        "allowed": step.decision.allowed,
                        "rule": step.decision.rule,
                        "reason": step.decision.reason,
                        "detail": step.decision.detail,
                        "status": step.decision.status,
                        "opaque": step.decision.opaque,
                    }
                    for step in steps
                ],
            }
        )
        return 0 if last.allowed else 1
    reads = f"{host.authority}, port {last.port}" if host else "no host"
    print(one_line(f"{method} {url}"))
    print(f"  reads as  {reads}" + (f", path {last.path.decode('ascii', 'replace')}" if last.path else ""))
    print(f"  policy    {policy.network_mode}, {policy.action}, phase {phase}, sha256 {policy.sha256[:12]}…")
    for step in steps:
        found = step.decision
        verdict = "report" if found.reported else "allow" if found.allowed else "deny"
        why = f"  {found.reason}: {one_line(found.detail)}" if found.reason else ""
        opaque = "  uninspected from here on" if found.opaque else ""
        print(f"  {step.kind:<8}  {verdict:<6}  rule {found.rule}{why}{opaque}")
    return 0 if last.allowed else 1


def gate_convert_command(path: Path, kind: str | None) -> int:
    """`caisson-run gate convert`: the policy on stdout, what did not come over on stderr."""
    from caisson_gate.convert import convert
    from caisson_gate.document import toml
    from caisson_gate.load import read

    data = read(path)
    found = convert(data, kind or _kind(path), str(path))
    comments = [f"from {path.name} ({kind or _kind(path)})", *found.warnings]
    text = toml(found.policy, tuple(one_line(comment) for comment in comments))
    if found.bundles:
        names = ", ".join(f'"{name}"' for name in found.bundles)
        text = text.replace("\nphases = ", f"\nbundles = [{names}]\nphases = ", 1)
    sys.stdout.write(text)
    for warning in found.warnings:
        say(f"warning: {warning}")
    return 0


def _kind(path: Path) -> str:
    return {".toml": "harbor", ".json": "sandbox-runtime"}.get(path.suffix, "gh-aw")


def _policy(path: Path) -> Policy:
    """A policy file, or the one that a task asks for."""
    from caisson_gate.convert import convert
    from caisson_gate.load import load, read

    path = path / "task.toml" if path.is_dir() else path
    if path.name == "task.toml":
        data = read(path)
        try:
            foreign = "schema" not in tomllib.loads(data.decode())
        except ValueError:
            foreign = False
        if foreign:
            return convert(data, "harbor", str(path)).policy
    return load(path)
