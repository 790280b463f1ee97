"""`caisson-run redteam …` and `caisson-run gate …`: the options. Every body imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from caisson_runner.options import EXIT_CODES, base_option, json_option, witness_option


@click.group()
def redteam() -> None:
    """Try to get out of our own boxes."""


@redteam.command("routes", epilog=EXIT_CODES)
@click.option(
    "--engine",
    type=click.Choice(["all", "local", "local-root", "local-rootless", "docker"]),
    default="all",
    show_default=True,
    help="Whose boxes. all: every engine that can be had here; root tries the plain user's as well.",
)
@click.option("--only", multiple=True, metavar="GLOB", help="Only routes whose name matches. Repeatable.")
@click.option("--quick", is_flag=True, help="The routes that matter most: under five minutes.")
@click.option("--task", default="", metavar="PATH", help="In boxes of this task: what applies to it.")
@click.option("--docker-host", default="", metavar="URL", help="The daemon's address; without it DOCKER_HOST counts.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Where records go.  [default: caisson-out/redteam]")
@click.option("--sarif", type=click.Path(dir_okay=False, path_type=Path), help="Write what is wrong as SARIF too.")
@click.option("--write-docs", is_flag=True, help="Write docs/egress.md as well.")
@witness_option
@base_option
@json_option
def redteam_routes(
    engine: str,
    only: Sequence[str],
    quick: bool,
    task: str,
    docker_host: str,
    out: Path | None,
    sarif: Path | None,
    write_docs: bool,
    witness: str,
    bases: Sequence[str],
    as_json: bool,
) -> None:
    """Run every known way out of a box for real, and say what was reached, what blocked it and what recorded it.

    The outside is a network namespace of our own with canaries and no way out of it; nothing leaves the machine.
    Fails when a route reached what it must not, was stopped by something else than declared, or went unrecorded.

    \b
    sudo caisson-run redteam routes --quick
    caisson-run redteam routes --engine local --only 'local-*' --json
    """
    from caisson_runner.redteam.command import Wanted, redteam_command

    wanted = Wanted(engine, tuple(only), quick, witness, docker_host, task, tuple(bases), out)
    sys.exit(redteam_command(wanted, as_json, sarif, write_docs))


@click.group()
def gate() -> None:
    """Policies of the gate, on paper: check, explain and convert them before any box has one."""


@gate.command("lint", epilog=EXIT_CODES)
@click.argument("policy", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings fail: exit code 1.")
@click.option("--expand", is_flag=True, help="Write the whole policy to stdout: bundles expanded, defaults filled in.")
@json_option
def gate_lint(policy: Path, strict: bool, expand: bool, as_json: bool) -> None:
    """Say what is wrong with a policy, and what it lets through that may not be meant.

    POLICY is a policy's TOML file, or a task (its folder or task.toml).

    \b
    caisson-run gate lint policy.toml
    caisson-run gate lint policy.toml --expand > whole.toml
    """
    from caisson_runner.commands.gate import gate_lint_command

    sys.exit(gate_lint_command(policy, strict, expand, as_json))


@gate.command("explain", epilog=EXIT_CODES)
@click.argument("policy", type=click.Path(path_type=Path))
@click.argument("url")
@click.option("-X", "--method", default="GET", show_default=True, help="The request's method.")
@click.option("--phase", type=click.Choice(["build", "agent", "verify"]), default="agent", show_default=True)
@click.option("--sni", help="Another server name in the TLS handshake than the URL's.")
@click.option("--host", help="Another Host header than the URL's.")
@click.option("--address", help="What the name resolves to.")
@click.option("--length", type=click.IntRange(min=0), help="Bytes of the request's body.")
@json_option
def gate_explain(
    policy: Path,
    url: str,
    method: str,
    phase: str,
    sni: str | None,
    host: str | None,
    address: str | None,
    length: int | None,
    as_json: bool,
) -> None:
    """Say what a policy makes of one URL: each step, the rule that decides, and the reason. Nothing is sent.

    Exit code 0 when the request would pass, 1 when it would be refused.

    \b
    caisson-run gate explain policy.toml https://docs.example.test/guide
    caisson-run gate explain policy.toml https://api.example.test/v1 -X POST --length 5000
    """
    from caisson_runner.commands.gate import gate_explain_command

    known = {
        "sni": None if sni is None else os.fsencode(sni),
        "host": None if host is None else os.fsencode(host),
        "address": address,
        "length": length,
    }
    sys.exit(gate_explain_command(policy, url, method, phase, known, as_json))


@gate.command("convert", epilog=EXIT_CODES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "kind",
    type=click.Choice(["harbor", "sandbox-runtime", "gh-aw"]),
    help="The file's format; without it .toml is harbor, .json sandbox-runtime, everything else gh-aw.",
)
def gate_convert(file: Path, kind: str | None) -> None:
    """Write the policy that another tool's file amounts to: a task.toml, sandbox-runtime settings, an agentic workflow.

    \b
    caisson-run gate convert my-task/task.toml > policy.toml
    """
    from caisson_runner.commands.gate import gate_convert_command

    sys.exit(gate_convert_command(file, kind))
