"""A small world for suites whose agents have a network: static hosts on the loopback, reached by the gate alone.

A folder for each host, a file for each path; a POST gets the file with `.post` behind its name. The gate finds the
hosts through the same option that `--resolve` sets, so no name is looked up and nothing leaves the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

MAX_POST = 1 << 20  # bytes of a request's body that are read


def _handler(root: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, suffix: str = "") -> None:
            host = (self.headers.get("Host") or "").partition(":")[0]
            names = [part for part in unquote(urlsplit(self.path).path).split("/") if part]
            file = root.joinpath(host, *names)
            file = file.with_name(file.name + suffix)
            known = host in {entry.name for entry in root.iterdir()} and ".." not in names and file.is_file()
            body = file.read_bytes() if known else b"no such page\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/json" if suffix else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.rfile.read(min(int(self.headers.get("Content-Length") or 0), MAX_POST))
            self.answer(".post")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def served(root: Path) -> Iterator[tuple[str, ...]]:
    """Serve every folder of ``root`` as a host while the body runs; gives what `--resolve` would be told."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(root))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="world", daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        yield tuple(f"{entry.name}=127.0.0.1:{port}" for entry in sorted(root.iterdir()) if entry.is_dir())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
