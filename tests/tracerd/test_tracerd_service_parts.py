"""Configuration, log, watchdog and metrics: what an operator writes and reads."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from caisson_tracerd import config, log, metrics
from caisson_tracerd.errors import ServeError, UsageError
from caisson_tracerd.metrics import HEAD_BYTES, served
from caisson_tracerd.notify import Pulse, notify
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily


def test_a_configuration_says_who_may_ask_how_large_rings_are_and_where_metrics_are(tmp_path: Path) -> None:
    path = tmp_path / "tracerd.toml"
    path.write_text('allow = ["alice", "1001"]\nring_size = 1048576\nmetrics = "127.0.0.1:9477"\n')
    assert config.read(path) == config.Config(("alice", "1001"), 1 << 20, config.Endpoint(None, "127.0.0.1", 9477))
    path.write_text("")
    assert config.read(path) == config.Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alow = []", "unknown key 'alow'"),
        ('allow = "alice"', "allow must be a list"),
        ("allow = [1000]", "allow must be a list"),
        ("ring_size = true", "ring_size must be a number"),
        ('metrics = "0.0.0.0:9477"', "not a loopback address"),
        ('metrics = "192.0.2.1:9477"', "not a loopback address"),
        ('metrics = "localhost:9477"', "numeric host"),
        ('metrics = "127.0.0.1"', "numeric host"),
        ('metrics = "127.0.0.1:70000"', "no port"),
        ('metrics = "unix:relative"', "absolute path"),
        ("allow = [", "cannot be read"),
        ("[tracerd]\nallow = []", "unknown key 'tracerd'"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line_with_the_files_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tracerd.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as problem:
        config.read(path)
    assert words in str(problem.value)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)


@given(st.one_of(st.text(), st.binary()))
def test_nothing_a_box_chose_makes_a_second_line_or_moves_a_terminal(value: str | bytes) -> None:
    shown = log.escaped(value)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 2400


def test_a_flood_of_one_event_is_bounded_and_the_rest_is_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: clock[0])
    made = log.Log(journal=True)
    for number in range(10_000):
        made.say(log.Priority.INFO, "box created", box=f"b{number}")
    made.say(log.Priority.WARNING, "another event")
    clock[0] += 1
    made.say(log.Priority.INFO, "box created", box="last")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == log.BURST + 2
    assert lines[0] == "<6>box created box=b0"
    assert lines[-2:] == ["<4>another event", f"<6>box created box=last suppressed={10_000 - log.BURST}"]


def test_priorities_are_written_only_where_a_journal_reads_them(capfd: pytest.CaptureFixture[str]) -> None:
    log.Log(journal=False).say(log.Priority.ERROR, "words", reason="two words")
    assert capfd.readouterr().err == "tracerd: words reason='two words'\n"


def test_the_watchdog_hears_of_a_well_daemon_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        illness: list[str] = []
        pulse = Pulse(lambda: illness[0] if illness else None, lambda: "fine")
        pulse.beat()
        pulse.beat()
        assert channel.recv(999) == b"STATUS=fine\nWATCHDOG=1"
        assert channel.recv(999) == b"WATCHDOG=1"
        illness.append("a pin is gone")
        pulse.beat()
        pulse.beat()
        notify("END=1")
        assert channel.recv(999) == b"STATUS=a pin is gone"
        assert channel.recv(999) == b"END=1"


class _One:
    def collect(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily("caisson_test", "A counter", 7)]


async def _ask(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_metrics_answer_one_request_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "HEAD_S", 0.5)
    where = config.Endpoint(tmp_path / "metrics.sock")
    async with served(where, _One()) as address:  # type: ignore[arg-type]
        assert address == f"unix:{where.path}"
        assert where.path is not None
        assert where.path.stat().st_mode & 0o777 == 0o600
        answer = await _ask(where.path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\ncaisson_test_total 7.0\n" in answer
        assert b"\nprocess_cpu_seconds_total " in answer
        assert b"\nprocess_resident_memory_bytes " in answer
        assert (await _ask(where.path, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await _ask(where.path, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
        assert await _ask(where.path, b"A" * (HEAD_BYTES * 4) + b"\r\n\r\n") == b""
        assert await _ask(where.path, b"GET /metr") == b""  # slow: cut off after HEAD_S
    assert not where.path.exists()


async def test_a_taken_metrics_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            async with served(config.endpoint(f"127.0.0.1:{port}"), _One()):  # type: ignore[arg-type]
                pass
