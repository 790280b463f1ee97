"""A real Chromium, headless, driven over its DevTools pipe (descriptors 3 and 4): no port, no library, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

LIMIT: Final = 120.0
"""Seconds for what takes one: machines are busy."""


def chromium() -> str | None:
    """The browser's path, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


_START: Final = """
import fcntl, os, sys
to, of = (fcntl.fcntl(int(one), fcntl.F_DUPFD_CLOEXEC, 10) for one in sys.argv[1:3])
os.dup2(to, 3)
os.dup2(of, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipes where the browser looks for them; a shell knows no descriptors above 9."""


class BrowserError(Exception):
    """The browser said no, or nothing at all."""


class Browser:
    """One page. ``problems`` is what its console and the log complained of, ``asked`` every address loaded."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, of: int) -> None:
        self._process, self._to, self._of = process, to, of
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._answers: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []
        self.asked: list[str] = []

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, answered."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        number, end = self._number, time.monotonic() + LIMIT
        while number not in self._answers:
            self._read(end, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, end: float, what: str) -> None:
        left = end - time.monotonic()
        if left <= 0 or not select.select([self._of], [], [], left)[0]:
            raise BrowserError(f"{what}: no answer within {LIMIT} s")
        chunk = os.read(self._of, 1 << 20)
        if not chunk:
            raise BrowserError(f"{what}: the browser ended")
        self._buffer += chunk
        *whole, self._buffer = self._buffer.split(b"\0")
        for one in whole:
            self._take(json.loads(one))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        value = message.get("params", {})
        match message["method"]:
            case "Network.requestWillBeSent":
                self.asked.append(value["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(value["exceptionDetails"])[:500])
            case "Log.entryAdded":
                self.problems.append(str(value["entry"].get("text")))
            case "Runtime.consoleAPICalled":
                self.problems.append(json.dumps(value.get("args"))[:500])
            case _:
                pass

    def size(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """The window, and which colours the person prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, fragment: str = "") -> None:
        """Loads a file and waits until its script has shown the events."""
        self.call("Page.navigate", url="about:blank")
        self.problems.clear()
        self.asked.clear()
        self.call("Page.navigate", url=path.absolute().as_uri() + fragment)
        self.until("location.protocol === 'file:' && document.documentElement?.dataset.ready !== undefined")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + LIMIT
        while not (value := self.js(expression)):
            if time.monotonic() > end:
                raise BrowserError(f"never true: {expression}")
            time.sleep(0.02)
        return value

    def key(self, name: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def picture(self, target: Path, *, whole: bool = False) -> None:
        """A screenshot; with ``whole`` of all of the page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        target.write_bytes(base64.b64decode(data))


@contextmanager
def browser() -> Iterator[Browser]:
    """Starts one with a profile of its own, and ends it with everything it started."""
    program = chromium()
    if program is None:
        raise BrowserError("no chromium")
    folder = tempfile.mkdtemp(prefix="caisson-browser-")
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    options = [
        "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
        "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    if os.geteuid() == 0:
        options.insert(0, "--no-sandbox")  # its own sandbox refuses root; the page is one that we wrote

    command = [sys.executable, "-I", "-c", _START, str(in_read), str(out_write), program, *options]
    process = subprocess.Popen(
        command, pass_fds=(in_read, out_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "HOME": folder, "TMPDIR": folder},
    )  # fmt: skip
    os.close(in_read)
    os.close(out_write)
    try:
        made = Browser(process, in_write, out_read)
        made.attach()
        yield made
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(in_write)
        os.close(out_read)
        shutil.rmtree(folder, ignore_errors=True)
