"""``tracerd``: serve, load, unload, status, doctor, install, uninstall.

Exit codes: 0 done; 1 doctor found something missing, or status no daemon; 2 wrong use; 3 the host or a daemon is at
fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import click
from caisson_runner.errors import CaissonError

from caisson_tracerd.layout import CGROUP_PARENT, RUN_DIR, STATE_DIR, Layout

P = ParamSpec("P")

EXIT_CODES = (
    "Exit codes: 0 done, 1 something is missing (doctor) or no daemon answers (status), 2 wrong use, "
    "3 the host or the daemon is at fault."
)


def _one_line(command: Callable[P, None]) -> Callable[P, None]:
    """A known problem is one line and an exit code, never a stack trace."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except CaissonError as problem:
            from caisson_tracerd.log import LOG, Priority

            LOG.say(Priority.ERROR, str(problem))
            sys.exit(problem.exit_code)

    return wrapped


def _places(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say where everything lies, as one Layout."""

    @click.option("--run-dir", type=Path, default=RUN_DIR, show_default=True, help="Sockets, manifest, lock.")
    @click.option("--state-dir", type=Path, default=STATE_DIR, show_default=True, help="Journals of boxes.")
    @click.option("--cgroup-parent", default=CGROUP_PARENT, show_default=True, help="Our folder in the v2 hierarchy.")
    @wraps(command)
    def wrapped(run_dir: Path, state_dir: Path, cgroup_parent: str, **rest: Any) -> None:
        def start() -> None:
            command(layout=Layout(run_dir.absolute(), state_dir.absolute(), cgroup_parent), **rest)

        _one_line(start)()

    return wrapped


@click.group(epilog=EXIT_CODES)
@click.version_option(package_name="caisson", prog_name="tracerd")
def main() -> None:
    """The witness daemon of Caisson: records what boxes do, from the kernel.

    \b
    Examples:
      sudo tracerd doctor
      sudo tracerd serve --allow alice
      sudo tracerd status --json
    """


@main.command(epilog=EXIT_CODES)
@_places
@click.option("--allow", multiple=True, metavar="USER", help="A user who gets a socket of their own; repeat.")
@click.option("--config", type=Path, help="A file with allow, ring_size and metrics; options here come on top.")
@click.option("--ring-size", type=int, help="Bytes of a box's ring.  [default: 4194304]")
@click.option("--metrics", metavar="ADDRESS", help="Serve metrics at 127.0.0.1:PORT, [::1]:PORT or unix:PATH.")
@click.option("--listen", metavar="HOST:PORT", help="Serve TCP too, with mutual TLS only.")
@click.option("--tls-cert", type=Path, help="The daemon's certificate, PEM.")
@click.option("--tls-key", type=Path, help="Its key, PEM.")
@click.option("--tls-ca", type=Path, help="The authority that signs the certificates of clients, PEM.")
@click.option("--tls-user", multiple=True, metavar="NAME=USER", help="Whose a client certificate's name is; repeat.")
@click.option("--unload-on-exit", is_flag=True, help="Drop every box and remove every pin at the end.")
def serve(
    layout: Layout,
    allow: tuple[str, ...],
    config: Path | None,
    ring_size: int | None,
    metrics: str | None,
    listen: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tls_user: tuple[str, ...],
    unload_on_exit: bool,
) -> None:
    """Run the daemon until SIGTERM. Loads the programs if they are not loaded, and proves that they see.

    Without --unload-on-exit the pins stay, the kernel records on, and the next daemon loses nothing.

    \b
    Examples:
      sudo tracerd serve --allow alice --allow bob
      sudo tracerd serve --config /etc/caisson/tracerd.toml --metrics 127.0.0.1:9477
    """
    from caisson_tracerd.config import Config, endpoint, read
    from caisson_tracerd.registry import checked_ring_bytes
    from caisson_tracerd.serve import Options, known_uids, uid_of
    from caisson_tracerd.serve import serve as run

    found = read(config) if config is not None else Config()
    users = {uid_of(name) for name in allow} | known_uids(found.allow)
    ring_bytes = checked_ring_bytes(ring_size if ring_size is not None else found.ring_size)
    where = endpoint(metrics) if metrics else found.metrics
    address = listen or found.tcp.listen
    tcp = None
    if address:
        from caisson_tracerd.listen import Tcp

        names = dict(found.tcp.users) | dict(_pair(word) for word in tls_user)
        whose = {name: uid_of(user) for name, user in names.items()}
        tcp = Tcp.checked(
            address, tls_cert or found.tcp.cert, tls_key or found.tcp.key, tls_ca or found.tcp.ca, whose
        )  # fmt: skip
    run(Options(layout, tuple(sorted(users)), ring_bytes, unload_on_exit, where, tcp))


def _pair(word: str) -> tuple[str, str]:
    from caisson_tracerd.errors import UsageError

    name, equals, user = word.rpartition("=")
    if not equals or not name or not user:
        raise UsageError(f"--tls-user {word!r} is not NAME=USER")
    return name, user


@main.command(epilog=EXIT_CODES)
@_places
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def load(layout: Layout, as_json: bool) -> None:
    """Compile, load and pin the programs, without a daemon."""
    from caisson_tracerd import pins
    from caisson_tracerd.serve import lock

    pins.require_root()
    layout.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    with lock(layout):
        manifest = pins.check(layout)
        fresh = manifest is None
        manifest = manifest or pins.load(layout)
    if as_json:
        click.echo(json.dumps(manifest, indent=1, sort_keys=True))
    else:
        how = f"loaded in {manifest['load_seconds']} s" if fresh else "loaded already"
        click.echo(f"{how}: {manifest['tier']} tier, {len(manifest['hooks'])} hooks, pinned under {layout.pins}")


@main.command(epilog=EXIT_CODES)
@_places
@click.argument("container", required=False, default="")
@click.option("--cgroup", default="", metavar="PATH", help="A version 2 cgroup instead of a container.")
@click.option("--docker-host", default="", metavar="URL", help="The Docker daemon that knows the container.")
@click.option("--for", "seconds", type=click.FloatRange(min=0), help="Stop after so many seconds.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="A new file for the records (caisson_proto.record).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def attach(
    layout: Layout,
    container: str,
    cgroup: str,
    docker_host: str,
    seconds: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Record a container that somebody else started, where it is, until it ends, --for is over or Ctrl-C.

    Says at once from when on it is recorded, and what was running then. For a bundle: caisson-run attach.

    \b
    Example:
      sudo tracerd attach web --for 60 -o web.bin
    """
    from caisson_tracerd.errors import UsageError
    from caisson_tracerd.watch import attach as run

    if bool(container) == bool(cgroup):
        raise UsageError("say what to attach to: either a CONTAINER or --cgroup PATH")
    if out is not None and out.exists():
        raise UsageError(f"{out} exists already; name a new file")
    said = run(layout, container, cgroup, docker_host, seconds, out)
    if as_json:
        click.echo(json.dumps(said, indent=1, sort_keys=True))
    else:
        for kind, count in said["counts"].items():
            click.echo(f"{kind:8} {count['delivered']:>10} recorded {count['lost']:>10} lost")


@main.command(epilog=EXIT_CODES)
@_places
def unload(layout: Layout) -> None:
    """Remove pins and our own mount. Boxes that are open lose their witness."""
    from caisson_tracerd import pins
    from caisson_tracerd.serve import lock

    pins.require_root()
    if not layout.run_dir.is_dir():
        click.echo("nothing was loaded")
        return
    with lock(layout):
        found = pins.unload(layout)
    for leftover in (layout.lock, layout.run_dir / "starts"):
        leftover.unlink(missing_ok=True)
    click.echo("unloaded" if found else "nothing was loaded")


@main.command(epilog=EXIT_CODES)
@_places
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(layout: Layout, as_json: bool) -> None:
    """Whether programs are loaded, a daemon answers, and which boxes the caller has."""
    from caisson_tracerd.status import look

    found = look(layout)
    if as_json:
        click.echo(json.dumps(found, indent=1, sort_keys=True))
    else:
        click.echo(f"programs: {found['programs']}")
        click.echo(f"daemon:   {found['daemon']}")
        for box in found["boxes"]:
            click.echo(f"box {box['id']}: {box['state']}, {box['journal_bytes']} bytes of journal")
    sys.exit(0 if found["version"] else 1)


@main.command(epilog=EXIT_CODES)
@_places
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def doctor(layout: Layout, as_json: bool) -> None:
    """Check everything the witness needs, and say what to do about what is missing."""
    from dataclasses import asdict

    from caisson_tracerd.doctor import examine

    findings = examine(layout)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            mark = "ok     " if finding.ok else "missing" if finding.needed else "note   "
            click.echo(f"{mark} {finding.name}: {finding.detail}")
            if not finding.ok:
                click.echo(f"        -> {finding.remedy}")
    if any(finding.needed and not finding.ok for finding in findings):
        sys.exit(1)


@main.command(epilog=EXIT_CODES)
@click.option("--command", "command_path", type=Path, help="What the unit starts.  [default: this tracerd]")
@click.option("--root", type=Path, default=Path("/"), help="Lay the files down below this folder instead (packaging).")
@click.option("--packaged", is_flag=True, help="Use a package's folders below /usr/lib (packaging).")
@_one_line
def install(command_path: Path | None, root: Path, packaged: bool) -> None:
    """Lay down the systemd unit, its folders and /etc/caisson/tracerd.toml. Running it again changes nothing.

    \b
    Example:
      sudo tracerd install && sudo systemctl enable --now tracerd
    """
    from caisson_tracerd import install as service

    below = Path("usr/lib") if packaged else Path("etc")
    places = service.Places(root.absolute(), below / "systemd/system", below / "tmpfiles.d")
    for line in service.install(places, command_path or service.own_command()):
        click.echo(line)
    if root == Path("/"):
        click.echo("next: name users in /etc/caisson/tracerd.toml, then: systemctl enable --now tracerd")


@main.command(epilog=EXIT_CODES)
@click.option("--purge", is_flag=True, help="Remove the configuration and every journal too.")
@_one_line
def uninstall(purge: bool) -> None:
    """Stop the service, remove its pins and its files. Boxes that are open lose their witness."""
    from caisson_tracerd import install as service

    for line in service.uninstall(Layout(), purge):
        click.echo(line)


if __name__ == "__main__":
    main()
