"""Options that several commands of `caisson-run` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
