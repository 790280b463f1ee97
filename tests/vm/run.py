"""``make test-kernels``: the witness tests on Debian's own kernels, each in a virtual machine.

    python tests/vm/run.py --kernels 6.1,here [--parts trampoline] [--quick] [--json FILE] [-- PYTEST ARGUMENTS]

``here`` is the kernel of this machine, without a virtual one. Each part of the tests (``parts.py``) is a machine of its
own, and its results are in the JSON file as soon as it has ended; what that file holds of others stays.

Exit codes: 0 every test that could run passed; 1 a test failed; 3 a machine gave no answer, or nothing could be built.
``matrix.py`` writes the tables of ``docs/witness.md`` from the JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import parts
from machine import Answer, Kernel, MachineError, pack, play, stop_all, sweep
from parts import Part

TOP = Path(__file__).resolve().parents[2]
RECIPES = TOP / "packaging/vm"
KERNELS = {
    "5.10": ("bullseye", "linux-image-cloud-amd64"),
    "6.1": ("bookworm", "linux-image-cloud-amd64"),
    "6.12": ("trixie", "linux-image-cloud-amd64"),
    "newest": ("sid", "linux-image-cloud-amd64"),
}
"""Suite and package of each; Debian keeps one kernel line for a release, ``sid`` has the newest."""

HERE = "here"
SHIPPED = ("bpf", "tracerd", "proto", "runner", "tests/tracerd", "pyproject.toml", "scenarios/routes")
PYTEST = (
    "-v",
    "-p",
    "no:cacheprovider",
    "-o",
    "faulthandler_timeout=600",
    "--junitxml=/out/junit.xml",
    "--durations=12",
)
NO_TREE = "no source tree of the project at"


@dataclass
class Result:
    """One part on one kernel."""

    kernel: str
    part: str = ""
    release: str = ""
    seconds: float = 0.0
    problem: str = ""
    tests: dict[str, str] = field(default_factory=dict)
    """Test -> passed, failed, skipped: reason."""
    seen: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def count(self, word: str) -> int:
        return sum(outcome.split(":")[0] == word for outcome in self.tests.values())


def cache_folder() -> Path:
    """Kernels and images: outside of the repository, so that a fresh clone is quick too."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "caisson/vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def built(*command: str) -> Path:
    """A path that a recipe prints."""
    done = subprocess.run([str(RECIPES / command[0]), *command[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise MachineError(f"packaging/vm/{' '.join(command)} ended with {done.returncode}")
    return Path(done.stdout.strip())


def shipped_files(tree: Path) -> dict[str, bytes | Path]:
    """What the guest gets of the work tree: what git knows or would know."""
    listed = subprocess.run(
        ["git", "-C", str(tree), "ls-files", "-z", "-co", "--exclude-standard", "--", *SHIPPED],
        capture_output=True,
        check=True,
    )
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    files = {f"tree/{name}": tree / name for name in names if (tree / name).is_file()}
    if not files:
        raise MachineError(f"{NO_TREE} {tree}")
    return dict(files)


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def job(tree: Path, part: Part) -> bytes:
    """The tests as a job."""
    names = {**parts.environment(part, "/out"), "CAISSON_VM": "1", "CAISSON_LOAD_TIMEOUT_S": "1800"}
    files = shipped_files(tree)
    with tempfile.TemporaryDirectory(prefix="caisson-storm-") as folder:
        storm = parts.storm(tree, Path(folder) / "storm")
        if storm is not None:
            names["CAISSON_STORM"] = "/job/storm"
            files["storm"] = storm.read_bytes()
    # What the job tells goes to the console too, where it is read when the machine gives no answer.
    script = f"""tail -n +1 -F /out/log > /dev/console 2>/dev/null &
cd /job/tree
export {" ".join(f"{name}={quoted(value)}" for name, value in names.items())}
python3 -m caisson_tracerd.cli doctor --json > /out/doctor.json 2>/out/doctor.log
python3 -m pytest {" ".join(map(quoted, [*PYTEST, *part.arguments]))}
"""
    return pack({"job.sh": script.encode(), **files})


def judged(answer: Answer, result: Result) -> Result:
    """Read what came back."""
    result.seconds = round(answer.seconds, 1)
    result.log = answer.log.decode(errors="replace")
    if "junit.xml" not in answer.files:
        result.problem = f"pytest left no report (exit code {answer.code})"
        return result
    for case in xml.fromstring(answer.files["junit.xml"]).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = f"failed: {first_line(child.get('message', ''))}"
            elif child.tag == "skipped":
                outcome = f"skipped: {first_line(child.get('message', ''))}"
        result.tests[name] = outcome
    for name in ("seen.json", "doctor.json"):
        try:
            result.seen[name.removesuffix(".json")] = json.loads(answer.files[name])
        except (KeyError, ValueError):
            continue
    return result


def first_line(text: str) -> str:
    return ascii(text.strip().splitlines()[0] if text.strip() else "")[1:-1][:200]


def run_kernel(name: str, part: Part, image: Path, work: bytes, timeout_s: float, cpus: int) -> Result:
    """Boot one kernel and run the job."""
    suite, package = KERNELS[name]
    result = Result(name, part.name)
    try:
        with _fetching:
            kernel = Kernel(name, built("kernel.sh", str(cache_folder()), suite, package))
        result.release = kernel.release
        return judged(play(kernel, image, work, timeout_s, cpus=cpus, scratch=cache_folder()), result)
    except MachineError as problem:
        result.problem = str(problem)
        result.tests = heard(problem.console)
        return result


def heard(console: bytes) -> dict[str, str]:
    """The tests that ended before their machine did, by its console."""
    told = re.findall(rb"tests/tracerd/(\w+)\.py::(\S+) (PASSED|FAILED|SKIPPED)", console)
    return {
        f"{module.decode()}::{name.decode()}": word.decode().lower() + ("" if word == b"PASSED" else ": see the log")
        for module, name, word in told
    }


def run_here(part: Part, tree: Path, timeout_s: float) -> Result:
    """The same on this machine's kernel."""
    result = Result(HERE, part.name, os.uname().release)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="caisson-here-") as out:
        names = {**os.environ, **parts.environment(part, out)}
        doctor = [sys.executable, "-m", "caisson_tracerd.cli", "doctor", "--json"]
        found = subprocess.run(doctor, cwd=tree, env=names, capture_output=True)
        Path(out, "doctor.json").write_bytes(found.stdout)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={out}/junit.xml"]
        try:
            done = subprocess.run(
                [*command, *part.arguments],
                cwd=tree,
                env=names,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            result.problem = f"the tests did not end within {timeout_s:g} s"
            return result
        files = {path.name: path.read_bytes() for path in Path(out).iterdir() if path.is_file()}
        return judged(Answer(done.returncode, done.stdout, b"", files, time.monotonic() - started), result)


def keep(target: Path, results: list[Result]) -> None:
    """Write what is known, beside what the file holds of other kernels and parts."""
    try:
        held = json.loads(target.read_text())
    except FileNotFoundError:
        held = []
    new = {(one.kernel, one.part) for one in results}
    whole = [one for one in held if (one["kernel"], one["part"]) not in new] + [asdict(one) for one in results]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    part.rename(target)


_fetching, _keeping = threading.Lock(), threading.Lock()


def table(results: list[Result]) -> str:
    """A line for each kernel, and one for each test that did not simply pass."""
    lines = [f"{'kernel':<8} {'part':<10} {'release':<28} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}"]
    for one in results:
        head = f"{one.kernel:<8} {one.part:<10} {one.release:<28}"
        if one.problem:
            lines.append(f"{head} no answer: {one.problem}")
            continue
        lines.append(
            f"{head} {one.count('passed'):>6} {one.count('failed'):>6} {one.count('skipped'):>7} {one.seconds:>8}"
        )
    for one in results:
        groups: dict[str, list[str]] = {}
        for test, outcome in sorted(one.tests.items()):
            if outcome != "passed":
                groups.setdefault(outcome, []).append(test)
        for outcome, tests in groups.items():
            more = f" and {len(tests) - 1} more" if len(tests) > 1 and not outcome.startswith("failed") else ""
            names = tests if outcome.startswith("failed") else tests[:1]
            lines += [f"{one.kernel:<8} {test}{more}: {outcome}" for test in names]
    return "\n".join(lines)


def why_not() -> str | None:
    """The reason why machines cannot be started here."""
    needed = ("qemu-system-x86_64", "mmdebstrap", "mke2fs", "cpio", "zstd", "depmod", "setpriv")
    missing = [tool for tool in needed if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    if missing:
        return f"{', '.join(missing)} missing; run packaging/vm/setup.sh"
    if os.geteuid() != 0:
        return "the guest's root file system can be built by root only"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="run the witness tests on Debian's kernels in virtual machines")
    parser.add_argument(
        "--kernels", default=",".join(KERNELS), help=f"of {', '.join(KERNELS)}, {HERE}; default: all but {HERE}"
    )
    parser.add_argument(
        "--parts", default=",".join(parts.USUAL), help=f"of {', '.join(parts.PARTS)}; default: the first three"
    )
    parser.add_argument("--json", type=Path, help="where to keep what was seen")
    parser.add_argument("--jobs", type=int, default=1, help="machines at a time")
    parser.add_argument("--cpus", type=int, default=2, help="processors of each machine")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one machine")
    parser.add_argument("--tree", type=Path, default=TOP, help="work tree to test")
    parser.add_argument("--quick", action="store_true", help="the trampoline tier and the plain record only")
    parser.add_argument("--verbose", action="store_true", help="print each guest's log")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest in place of the parts'")
    options = parser.parse_args()
    names = [name for name in options.kernels.replace(",", " ").split() if name]
    unknown = [name for name in names if name not in (*KERNELS, HERE)]
    if unknown or not names:
        parser.error(f"kernels are {', '.join(KERNELS)} and {HERE}, not {', '.join(unknown) or 'none'}")
    wanted = [name for name in options.parts.replace(",", " ").split() if name]
    unknown = [name for name in wanted if name not in parts.PARTS]
    if unknown or not wanted:
        parser.error(f"parts are {', '.join(parts.PARTS)}, not {', '.join(unknown) or 'none'}")
    chosen = [parts.PARTS[name] for name in wanted]
    if options.quick:
        chosen = [parts.QUICK]
    if options.pytest:
        chosen = [Part("own", (), tuple(options.pytest))]
    reason = why_not() if names != [HERE] else None
    if reason:
        print(f"test-kernels: {reason}", file=sys.stderr)
        return 3
    started = time.monotonic()
    sweep(cache_folder())
    signal.signal(signal.SIGTERM, lambda *_: stop_all())
    results: list[Result] = []

    def run(name: str, part: Part) -> None:
        if name == HERE:
            one = run_here(part, options.tree, options.timeout)
        else:
            one = run_kernel(name, part, image, jobs[part.name], options.timeout, options.cpus)
        with _keeping:
            results.append(one)
            if options.json:
                keep(options.json, results)
            if options.verbose or one.problem or one.count("failed"):
                print(f"--- log of {one.kernel}, {one.part}\n{one.log[-20000:]}", flush=True)

    try:
        if names != [HERE]:
            image = built("image.sh", str(cache_folder()))
            jobs = {part.name: job(options.tree, part) for part in chosen}
    except MachineError as problem:
        print(f"test-kernels: {problem}", file=sys.stderr)
        return 3
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(run, name, part) for name in names for part in chosen]:
            done.result()
    print(table(results))
    passed, failed = (sum(one.count(word) for one in results) for word in ("passed", "failed"))
    skipped = sum(one.count("skipped") for one in results)
    print(f"kernels: {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - started:.0f} s")
    if any(one.problem for one in results):
        return 3
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
