"""`caisson-run`: the command people, CI and other harnesses call. Every body imports what it needs when it runs."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

EXIT_CODES = """\b
Exit codes:
  0    done; for `run`: the verdict is pass
  1    the verdict is fail, or a suite's results differ from what it expects
  2    bad input: a missing task, a malformed suite, an unknown behaviour, a wrong option
  3    infra: our side or the host failed, so there is no verdict
  4    void: it would pass, but a disqualifying finding stands
  130  interrupted (143 by SIGTERM); nothing is left running"""

witness_option = click.option(
    "--witness",
    type=click.Choice(["auto", "ebpf", "strace", "none"]),
    default="auto",
    show_default=True,
    is_eager=True,  # before --lossless, in whichever order they are written
    help="What watches the box. auto takes the best one here and says which and why.",
)


def engine_options(command: F) -> F:
    """--engine and --docker-host."""
    engine = click.option(
        "--engine",
        type=click.Choice(["local", "docker"]),
        default="local",
        show_default=True,
        help="What makes the boxes: namespaces of our own, or containers of a Docker daemon here (as root).",
    )
    host = click.option("--docker-host", metavar="URL", help="The daemon's address; without it DOCKER_HOST counts.")
    return engine(host(command))


def gate_options(command: F) -> F:
    """--gate and what goes with it, as one argument ``gate``: the fields of `caisson_runner.gate.GateOptions`."""

    @functools.wraps(command)
    def together(*args: Any, **given: Any) -> Any:
        names = ("policy", "record", "replay", "resolve", "upstream_ca")
        return command(*args, gate={name: given.pop(name) for name in names}, **given)

    file = click.Path(path_type=Path)
    options = (
        click.option("--gate", "policy", type=file, metavar="POLICY", help="What the box may reach: a TOML file."),
        click.option("--record", is_flag=True, help="Keep bodies and flows of the gate, so that they can be replayed."),
        click.option("--replay", type=file, metavar="BUNDLE", help="Answer from a recorded bundle, not from outside."),
        click.option("--resolve", multiple=True, metavar="NAME=ADDR", help="Where the gate finds a name; repeatable."),
        click.option(
            "--upstream-ca",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="PEM",
            help="Whom the gate trusts outside; not the host's.",
        ),
    )
    for option in reversed(options):
        together = option(together)
    return together  # type: ignore[return-value]


def _lossless(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The flag is one more name of a witness."""
    if not wanted:
        return
    if context.params.get("witness", "auto") not in ("auto", "ebpf"):
        raise click.BadParameter("only the witness ebpf can be lossless")
    from caisson_runner.witness.choose import LOSSLESS

    context.params["witness"] = LOSSLESS


lossless_option = click.option(
    "--lossless",
    is_flag=True,
    expose_value=False,
    callback=_lossless,
    help="Let the box stand still rather than outrun its record: nothing is dropped, however much it does.",
)
rules_option = click.option(
    "--rules",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of your own rules for findings, beside those that come with Caisson. Repeatable.",
)
base_option = click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="IMAGE=PATH",
    help="What stands in for an image named in FROM: a root filesystem tar, or `host`. Repeatable.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, for machines.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(package_name="caisson", prog_name="caisson-run")
def cli() -> None:
    """Run AI agents in clean forked boxes, watch them from the kernel, grade them from outside.

    \b
    caisson-run suite article
    caisson-run run -p scenarios/tasks/add-mul -a cheat-conftest
    caisson-run run -p my-task --agent-dir ./agent -- python3 /agent/solve.py
    caisson-run bundle show caisson-out/…/runs/E1-cheat-conftest
    """


@cli.command(epilog=EXIT_CODES)
@click.option("-p", "--path", "task", required=True, metavar="TASK", help="A Harbor task directory, or a name of ours.")
@click.option("-a", "--agent", metavar="NAME", help="oracle, nop, or a behaviour's id.")
@click.option(
    "--agent-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder to see read-only at /agent in the box.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The bundle's folder. It must not exist yet.")
@click.option("--seed", type=int, help="Seed of the held-out inputs; without it one is drawn and recorded.")
@witness_option
@lossless_option
@engine_options
@base_option
@gate_options
@rules_option
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    task: str,
    agent: str | None,
    agent_dir: Path | None,
    out: Path | None,
    seed: int | None,
    witness: str,
    engine: str,
    docker_host: str | None,
    bases: Sequence[str],
    gate: Mapping[str, Any],
    rules: Sequence[Path],
    as_json: bool,
    command: Sequence[str],
) -> None:
    """Run one agent on one task, grade it and keep the evidence.

    The agent is -a NAME, or any COMMAND after `--`, started in the box with the task's working directory.

    \b
    caisson-run run -p add-mul -a oracle
    caisson-run run -p add-mul -a hardcode-visible --seed 7 --json
    caisson-run run -p add-mul -- sh -c 'sed -i "s/a - b/a + b/" impl.py'
    """
    from caisson_runner.commands.run import run_command

    chosen = (witness, engine, docker_host, bases, gate, rules)
    sys.exit(run_command(task, agent, command, agent_dir, out, seed, *chosen, as_json))


@cli.command(epilog=EXIT_CODES)
@click.argument("name", metavar="SUITE")
@click.option("-n", "--parallel", type=click.IntRange(1, 256), default=1, show_default=True, help="Runs at once.")
@click.option(
    "-k", "--attempts", type=click.IntRange(1, 1000), default=1, show_default=True, help="Times each run is made."
)
@click.option("-i", "--include", multiple=True, metavar="GLOB", help="Only runs whose id matches. Repeatable.")
@click.option("-x", "--exclude", multiple=True, metavar="GLOB", help="Not the runs whose id matches. Repeatable.")
@click.option("-l", "--limit", type=click.IntRange(min=1), help="At most so many runs.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Where plan, bundles and results go.")
@click.option("--resume", is_flag=True, help="Go on with the suite in --out (or the newest one): whole runs are kept.")
@witness_option
@lossless_option
@engine_options
@base_option
@gate_options
@rules_option
@json_option
def suite(
    name: str,
    parallel: int,
    attempts: int,
    include: Sequence[str],
    exclude: Sequence[str],
    limit: int | None,
    out: Path | None,
    resume: bool,
    witness: str,
    engine: str,
    docker_host: str | None,
    bases: Sequence[str],
    gate: Mapping[str, Any],
    rules: Sequence[Path],
    as_json: bool,
) -> None:
    """Run a suite: a name of ours (article, cheats, real) or a suite's TOML file, and print its tables.

    \b
    caisson-run suite article -n 2
    caisson-run suite article -i 'E2-*' --witness strace
    caisson-run suite cheats -n 2 -i 'A-*'
    caisson-run suite article --engine docker
    caisson-run suite my-suite.toml -o out --resume
    """
    from caisson_runner.commands.suite import suite_command

    chosen = (witness, engine, docker_host, bases, gate, rules)
    sys.exit(suite_command(name, parallel, attempts, include, exclude, limit, out, resume, *chosen, as_json))


@cli.command(epilog=EXIT_CODES)
@click.argument("container", required=False, default="")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The bundle's folder. It must not exist yet.")
@click.option("--for", "seconds", type=click.FloatRange(min=0), help="Stop after so many seconds.")
@click.option("--cgroup", default="", metavar="PATH", help="A version 2 cgroup instead of a container (root).")
@click.option("--docker-host", default="", metavar="URL", help="The daemon that knows the container (root).")
@json_option
def attach(
    container: str, out: Path | None, seconds: float | None, cgroup: str, docker_host: str, as_json: bool
) -> None:
    """Witness a container that somebody else started, until it ends, --for is over or Ctrl-C.

    Nothing in it is touched. The bundle says from when on it is a record, and what was running, open and mapped then.
    Needs tracerd; a plain user needs the container to carry the label caisson.uid=UID.

    \b
    caisson-run attach web
    caisson-run attach 4f1c09 --for 60 -o web-bundle
    """
    from caisson_runner.commands.attach import attach_command

    sys.exit(attach_command(container, out, seconds, cgroup, docker_host, as_json))


@cli.command(epilog=EXIT_CODES)
@click.argument("path", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--checks", "task", required=True, metavar="TASK", help="The task whose checks to use: a directory or name."
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The new bundle's folder. It must not exist yet.")
@click.option("--seed", type=int, help="Seed of the held-out inputs; without it one is drawn and recorded.")
@engine_options
@base_option
@rules_option
@json_option
def regrade(
    path: Path,
    task: str,
    out: Path | None,
    seed: int | None,
    engine: str,
    docker_host: str | None,
    bases: Sequence[str],
    rules: Sequence[Path],
    as_json: bool,
) -> None:
    """Grade the final state kept in a bundle with other checks; the agent is not run again.

    Leaves a new bundle that says which one it is derived from. The old one is verified first, and only read.

    \b
    caisson-run regrade my-run --checks better-task
    """
    from caisson_runner.commands.regrade import regrade_command

    sys.exit(regrade_command(path, task, out, seed, engine, docker_host, bases, rules, as_json))


@cli.command(epilog=EXIT_CODES)
@click.argument("path", metavar="BUNDLE|SUITE_FOLDER", type=click.Path(path_type=Path))
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="The file.  [default: ./NAME-report.html]")
def report(path: Path, out: Path | None) -> None:
    """Write one HTML file about a run or a whole suite, to read, search, print and send. It needs no network.

    \b
    caisson-run report caisson-out/…/runs/E1-cheat-conftest
    caisson-run report caisson-out/article-… -o article.html
    """
    from caisson_runner.commands.report import report_command

    sys.exit(report_command(path, out))


@cli.command()
@click.argument("folder", metavar="SUITE_OUT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument(
    "other",
    metavar="[OTHER_SUITE_OUT]",
    required=False,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--by", type=click.Choice(["behaviour", "task"]), default="behaviour", show_default=True)
@click.option("--agent", default="", metavar="GLOB", help="Only runs of such an agent.")
@click.option("--other-agent", default="", metavar="GLOB", help="The other side's agent; alone, of the same suite.")
@json_option
def stats(folder: Path, other: Path | None, by: Any, agent: str, other_agent: str, as_json: bool) -> None:
    """Say what a suite's results can tell: rates with intervals, pass@k, spread, lies; with two, which is better.

    Exit code 0, whatever the numbers are; 2 when there are no results to count.

    \b
    caisson-run stats caisson-out/article-…
    caisson-run stats before after
    caisson-run stats my-suite --agent 'model-a' --other-agent 'model-b'
    """
    from caisson_runner.commands.stats import stats_command

    sys.exit(stats_command(folder, other, by, agent, other_agent, as_json))


@cli.group()
def bundle() -> None:
    """Look into evidence bundles."""


@bundle.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also what is usually noise: library look-ups, caches.")
@json_option
def bundle_show(path: Path, everything: bool, as_json: bool) -> None:
    """Print what the agent did: processes, files written, tests touched, connects tried, the verdict.

    \b
    caisson-run bundle show caisson-out/…/runs/E1-cheat-conftest
    """
    from caisson_runner.commands.bundle import bundle_show_command

    sys.exit(bundle_show_command(path, everything, as_json))


KINDS = ("fork", "exec", "exit", "open", "connect", "change", "look", "pass", "cross", "socket")


@bundle.command("events")
@click.argument("path", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option("--pid", type=click.IntRange(min=0), help="Only of this process.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only of this kind. Repeatable.")
@click.option("--path", "paths", multiple=True, metavar="GLOB", help="Only about such a path; * spans /. Repeatable.")
@click.option("--errno", "errors", multiple=True, metavar="ERRNO", help="Only with this result: ENOENT, 2. Repeatable.")
@click.option("--failed", is_flag=True, help="Only what was refused or failed.")
@click.option("--start", default="0", metavar="TIME", help="Only from then on: boot clock in ns, or +SECONDS.")
@click.option("--end", metavar="TIME", help="Only before then.")
@click.option("--agent", "harness", flag_value=False, default=None, type=bool, help="Only what the agent did.")
@click.option("--harness", "harness", flag_value=True, type=bool, help="Only what the harness's own check did.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N of them.")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines: an event a line, as `bundle export -f jsonl`.")
def bundle_events(
    path: Path,
    pid: int | None,
    kinds: Sequence[str],
    paths: Sequence[str],
    errors: Sequence[str],
    failed: bool,
    start: str,
    end: str | None,
    harness: bool | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the events of a bundle's record, as it is read: a record of any length takes no more memory.

    Exit code 0, also when no event is as asked for.

    \b
    caisson-run bundle events my-run --kind exec --agent
    caisson-run bundle events my-run --path '/solution*' --failed
    caisson-run bundle events my-run --start +1.5 --end +2 --json
    """
    from caisson_runner.commands.events import bundle_events_command

    sys.exit(bundle_events_command(path, pid, kinds, paths, errors, failed, start, end, harness, limit, as_json))


@bundle.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Also caches, scratch files and reads of the system.")
@json_option
def bundle_diff(a: Path, b: Path, everything: bool, as_json: bool) -> None:
    """Say what the agent of one bundle did that the other's did not, and what came of it.

    Pids, times and how often are not compared. Exit code 0 when nothing differs, 1 when something does, 2 when one
    of them is no bundle.

    \b
    caisson-run bundle diff runs/E1-honest-fix runs/E1-cheat-conftest
    """
    from caisson_runner.commands.difference import bundle_diff_command

    sys.exit(bundle_diff_command(a, b, everything, as_json))


@bundle.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--key", default="", metavar="KEY", help="Who must have signed it: a key id, or a public key's PEM file.")
@json_option
def bundle_verify(path: Path, key: str, as_json: bool) -> None:
    """Check that a bundle is what was signed; name the first file, and byte, that was changed.

    \b
    caisson-run bundle verify caisson-out/…/runs/E1-cheat-conftest
    caisson-run bundle verify their-bundle --key their.pub
    """
    from caisson_runner.commands.bundle import bundle_verify_command

    sys.exit(bundle_verify_command(path, key, as_json))


@bundle.command("key")
def bundle_key() -> None:
    """Print the public key that bundles made here are signed with, for those who are to check them."""
    from caisson_runner.commands.bundle import bundle_key_command

    sys.exit(bundle_key_command())


FORMATS = ("jsonl", "ocsf", "ecs", "tetragon", "perfetto", "csv", "parquet", "harbor", "atif")


@bundle.command("export")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-f", "--format", "name", type=click.Choice(FORMATS), required=True, help="See docs/bundle.md.")
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="A new file (harbor: folder). [stdout]")
@click.option("--start", type=click.IntRange(min=0), default=0, metavar="NS", help="Only events from this time on.")
@click.option("--end", type=click.IntRange(min=0), metavar="NS", help="Only events before this time.")
@click.option("--pid", type=click.IntRange(min=0), help="Only events of this process.")
@click.option(
    "--trajectory",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="atif: the agent's own trajectory, to have what was witnessed put beside what it claims.",
)
def bundle_export(
    path: Path, name: str, out: Path | None, start: int, end: int | None, pid: int | None, trajectory: Path | None
) -> None:
    """Write a bundle in a format of other tools. Times are CLOCK_BOOTTIME in ns, as in the record.

    \b
    caisson-run bundle export my-run -f perfetto -o trace.json
    caisson-run bundle export my-run -f ocsf | jq .class_uid
    """
    from caisson_runner.commands.bundle import bundle_export_command

    sys.exit(bundle_export_command(path, name, out, start, end, pid, trajectory))


@cli.group()
def snapshot() -> None:
    """Make, list and remove the immutable states that boxes are forked from."""


@snapshot.command("create")
@click.option("-p", "--path", "task", metavar="TASK", help="A task directory: its environment becomes the snapshot.")
@click.option("--rootfs", type=click.Path(path_type=Path), help="A root filesystem tar (docker export, mmdebstrap).")
@click.option("--label", default="", help="A name to find it by.")
@base_option
@json_option
def snapshot_create(task: str | None, rootfs: Path | None, label: str, bases: Sequence[str], as_json: bool) -> None:
    """Make a snapshot from a task's environment or from a root filesystem tar; print its id.

    \b
    caisson-run snapshot create -p scenarios/tasks/add-mul
    caisson-run snapshot create --rootfs ubuntu.tar --label ubuntu
    """
    from caisson_runner.commands.snapshot import snapshot_create_command

    sys.exit(snapshot_create_command(task, rootfs, label, bases, as_json))


@snapshot.command("list")
@json_option
def snapshot_list(as_json: bool) -> None:
    """List the snapshots kept here, with their sizes."""
    from caisson_runner.commands.snapshot import snapshot_list_command

    sys.exit(snapshot_list_command(as_json))


@snapshot.command("prune")
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every snapshot that no running box uses.")
@json_option
def snapshot_prune(ids: Sequence[str], everything: bool, as_json: bool) -> None:
    """Remove snapshots: by id or label, every unused one (--all), or without either those that a newer one replaced.

    \b
    caisson-run snapshot prune
    caisson-run snapshot prune 3f2a9c
    caisson-run snapshot prune --all
    """
    from caisson_runner.commands.snapshot import snapshot_prune_command

    sys.exit(snapshot_prune_command(ids, everything, as_json))


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what this host offers, what is missing, what that costs and how to mend it."""
    from caisson_runner.commands.doctor import doctor_command

    sys.exit(doctor_command(as_json))


@cli.command(epilog=EXIT_CODES)
@click.option("--routes", "globs", multiple=True, metavar="GLOB", help="Only routes whose name matches. Repeatable.")
@click.option("--quick", is_flag=True, help="The routes that matter most, one poller, one round: under three minutes.")
@click.option("--loads/--no-loads", default=True, help="The two workloads and the probe. Off with --routes.")
@click.option(
    "--tracerd",
    "sockets",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Socket of a tracerd; repeat for daemons of other tiers.  [default: this user's]",
)
@click.option("--write-docs", is_flag=True, help="Write docs/compare.md as well.")
@json_option
def compare(
    globs: Sequence[str], quick: bool, loads: bool, sockets: Sequence[Path], write_docs: bool, as_json: bool
) -> None:
    """Show what eBPF, strace and polling each see of the same deeds, what they cost, and whether the box can tell.

    Fails where a result differs from the one declared in scenarios/routes/witness/routes.toml.

    \b
    sudo caisson-run compare --quick
    sudo caisson-run compare --routes 'open-io-uring*' --json
    """
    from caisson_runner.compare.command import compare_command

    sys.exit(compare_command(globs, quick, loads, sockets, as_json, write_docs))


@cli.group()
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


@cli.group()
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors of ours become one line on stderr and their documented exit code."""
    from caisson_runner.errors import CaissonError
    from caisson_runner.report.text import one_line

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale that has no … shows it as an escape
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        finally:
            sys.stdout.flush()  # here, where a reader that has left can still be told from a fault
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except CaissonError as error:
        print(f"caisson-run: {one_line(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be written goes nowhere
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # a full or read-only disk, a name too long: the host's answer, not a bug to trace
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
        print(f"caisson-run: {one_line(where + (error.strerror or str(error)))}", file=sys.stderr)
        sys.exit(3)
