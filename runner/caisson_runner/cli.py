"""`caisson-run`: the command people, CI and other harnesses call. Every body imports what it needs when it runs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from caisson_runner.cli_bundle import bundle
from caisson_runner.cli_gate import gate, redteam
from caisson_runner.options import (
    EXIT_CODES,
    base_option,
    engine_options,
    gate_options,
    json_option,
    lossless_option,
    rules_option,
    witness_option,
)


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


for group in (bundle, redteam, gate):
    cli.add_command(group)


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
