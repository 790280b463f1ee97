"""The catalogue's small world answers by host and path, and gives away nothing else."""

from __future__ import annotations

import http.client
from pathlib import Path

from caisson_runner.world import served


def test_hosts_are_folders_and_nothing_beside_them_is_served(tmp_path: Path) -> None:
    (tmp_path / "world/a.test/x").mkdir(parents=True)
    (tmp_path / "world/a.test/x/page").write_text("hello")
    (tmp_path / "world/a.test/x/page.post").write_text("{}")
    (tmp_path / "secret").write_text("no")
    with served(tmp_path / "world") as found:
        name, _, place = found[0].partition("=")
        assert (name, len(found)) == ("a.test", 1)

        def ask(method: str, path: str, host: str = "a.test") -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(place, timeout=30)
            connection.request(method, path, body=b"{}" if method == "POST" else None, headers={"Host": host})
            answer = connection.getresponse()
            said = answer.status, answer.read()
            connection.close()
            return said

        assert ask("GET", "/x/page") == (200, b"hello")
        assert ask("POST", "/x/page") == (200, b"{}")
        assert ask("GET", "/x/page", "b.test")[0] == 404
        for path in ("/../../secret", "/%2e%2e/%2e%2e/secret", "/x", "/x/page.poster"):
            assert ask("GET", path)[0] == 404
        assert ask("GET", "/secret", "..")[0] == 404
