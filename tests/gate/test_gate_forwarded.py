"""What a box writes into its headers cannot become another host, path, method or length upstream."""

from __future__ import annotations

from pathlib import Path

import pytest
from caisson_gate.forwarded import forwarded
from http_rig import World, answer_of, box, echo


@pytest.mark.parametrize(
    "name",
    [b"X-Original-URL", b"X_Original_URL", b"x_forwarded_host", b"X-Forwarded_Host", b"Content_Length",
     b"Transfer_Encoding", b"X_HTTP_Method_Override", b"Sec-WebSocket-Extensions"],
)  # fmt: skip
def test_no_spelling_of_an_overriding_field_is_forwarded(name: bytes) -> None:
    kept = forwarded([(name, b"x"), (b"Accept", b"*/*")])
    assert kept == [(b"Accept", b"*/*")]


def test_other_fields_with_underscores_are_the_boxs_own_affair() -> None:
    assert forwarded([(b"my_field", b"x")]) == [(b"my_field", b"x")]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"close", [b"close"]),
        (b"close, Host, authorization", [b"close"]),
        (b"Upgrade", [b"Upgrade"]),
        (b"Keep-Alive,x-y", [b"Keep-Alive"]),
        (b"host", []),
        (b",", []),
    ],
)
def test_connection_names_no_field_that_the_next_proxy_would_take_away(value: bytes, kept: list[bytes]) -> None:
    assert [value for _, value in forwarded([(b"Connection", value)])] == kept


async def test_a_credential_has_no_twin_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    folder.mkdir()
    world = World(folder)
    policy = (
        '[[allow]]\nhosts = ["a.test"]\nmethods = ["GET"]\ninject = "env:KEY"\ninject_header = "x-api-key"\n'
        'inject_prefix = ""\n'
    )
    async with (
        world.upstream("a.test", echo) as upstream,
        box(world, policy, tmp_path / "gate", environ={"KEY": "secret-of-the-gate"}) as here,
    ):
        status, _, _ = answer_of(await here.get("a.test", headers="X_Api_Key: mine\r\nX-Api_Key: mine\r\n"))
        assert status == 200
        assert b"mine" not in upstream.seen and upstream.seen.count(b"secret-of-the-gate") == 1
