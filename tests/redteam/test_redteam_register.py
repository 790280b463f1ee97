"""The registers of routes and the scripts they name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from caisson_runner.redteam import blame
from caisson_runner.redteam.errors import RegisterInvalid
from caisson_runner.redteam.register import ENGINES, load_register, select
from caisson_runner.tasks.search import scenarios_root

ROUTES = load_register(scenarios_root() / "routes")
REASONS = {
    "not_allowed", "denied_rule", "method_not_allowed", "path_not_allowed", "port_not_allowed", "ip_literal",
    "address_denied", "host_mismatch", "sni_mismatch", "malformed", "after_deadline", "undated", "too_large",
    "protocol", "dns_not_allowed", "dns_malformed", "tls_client_rejected_ca", "upstream_tls_failed", "error",
}  # fmt: skip
KNOWN = """
ip-tcp-literal ip-tcp-other-port ip-v6-literal ip-v6-embedded-v4 ip-udp-send ip-udp-443 ip-quic ip-icmp-echo
ip-icmpv6-nd ip-raw-protocols ip-other-transports ip-packet-socket ip-xdp-bpf ip-fragments ip-tcp-fastopen
ip-source-spoof ip-arp-nd-spoof ip-box-to-box ip-host-gateway ip-host-loopback ip-host-loopback-via-gate
ip-metadata ip-so-mark ip-uid-owner ip-delete-firewall ip-new-netns ip-tun-wireguard dns-tunnel-qname
dns-tunnel-allowed-wildcard dns-direct-udp dns-direct-tcp dns-over-tls dns-over-https dns-multicast
dns-docker-embedded dns-hosts-file dns-wire-confusion dns-rebinding gate-suffix-match gate-host-spelling
gate-host-malformed gate-ipv4-spellings gate-v6-zone gate-connect-port gate-sni-mismatch gate-fronting
gate-tls-odd gate-smuggling gate-websocket gate-upgrade-other gate-redirect gate-open-mirrors gate-git-ssh
gate-no-proxy-env gate-relay gate-self-loop gate-allowed-exfil gate-deadline gate-pinned-tls
gate-log-injection local-engine-socket local-unix-path local-unix-abstract local-inherited-fd local-vsock
local-io-uring local-odd-families local-netlink local-keyring local-shared-ipc local-proc-ns
local-proc-sys-write local-ptrace local-cgroup-bpf local-side-channel local-gate-secrets local-fix-in-image
local-model-tools
""".split()  # noqa: SIM905 - a list of 80 quoted names is no easier to read


def test_every_known_way_out_has_a_route_and_says_what_must_stop_it() -> None:
    assert set(KNOWN) <= {route.id for route in ROUTES}
    for route in ROUTES:
        assert route.group in ("B1", "B2", "B3", "B4"), route.id
        for network in () if route.documented else route.networks:
            for word in route.blocked[network]:
                gate, _, reason = word.partition(":")
                assert (gate == "gate" and reason in REASONS) or word in blame.WORDS, (route.name, word)


def test_each_group_that_is_run_has_a_control() -> None:
    assert {"B1", "B3", "B4"} <= {route.group for route in ROUTES if route.control}
    assert any(route.control and "passes" in route.blocked["gate"] for route in ROUTES), "something must be allowed"


@pytest.mark.parametrize("script", sorted({r.script for r in ROUTES if not r.documented}), ids=lambda path: path.stem)
def test_a_route_stands_alone_and_says_what_it_does(script: Path) -> None:
    tree = ast.parse(script.read_bytes())
    says = " ".join((ast.get_docstring(tree) or "").split())
    assert says.startswith(f"{script.stem}: ") and "Does" in says and "ust happen: " in says
    imported = {
        (node.module or "").partition(".")[0] if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize("script", sorted({r.script for r in ROUTES if not r.documented}), ids=lambda path: path.stem)
def test_a_route_names_documentation_addresses_or_an_address_class_only(script: Path) -> None:
    import re

    ours = ("192.0.2.", "198.51.100.", "203.0.113.", "198.18.", "127.", "0.0.0.0", "169.254.169.254", "100.100.100.200")
    ours += ("168.63.129.16", "172.17.0.", "192.168.0.", "224.0.0.", "1.2.3.4", "256.1.1.1", "203.0.28944")
    for address in re.findall(r"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", script.read_text()):
        assert address.startswith(ours), address


def test_quick_is_a_part_and_a_glob_chooses_by_id_or_case() -> None:
    quick = select(ROUTES, (), quick=True)
    assert 40 < len(quick) < len(ROUTES) / 1.3
    assert [route.name for route in select(ROUTES, ("local-vsock/stream",), quick=False)] == ["local-vsock/stream"]
    assert len(select(ROUTES, ("local-vsock",), quick=True)) == 3
    with pytest.raises(RegisterInvalid, match="no route matches"):
        select(ROUTES, ("nothing*",), quick=False)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('[a]\ngroup = "B1"\n', "nothing says what stops it"),
        ('[a]\nblocked = "seccomp"\nwhat = 1\n', "what is no key"),
        ('[a]\nblocked = "seccomp"\nengines = ["other"]\n', "'other' is none of"),
        ('[a]\nblocked = "seccomp"\ncases = ["x"]\ncase.y = {}\n', "case.y is not among its cases"),
        ('[a]\nblocked = "seccomp"\n[b]\nblocked = "seccomp"\n', "needs a script b.py"),
        ("[a]\nblocked = ", "routes.toml"),
        ("", "a.py is not registered"),
    ],
)
def test_a_register_that_is_wrong_is_refused_with_the_reason(
    entry: str, problem: str, own_register: Callable[[str, dict[str, str]], Path]
) -> None:
    with pytest.raises(RegisterInvalid, match=problem):
        load_register(own_register(entry, {"a": ""}))


def test_a_case_overrides_its_route(own_register: Callable[[str, dict[str, str]], Path]) -> None:
    entry = '[a]\nblocked = "no-route"\nengines = ["docker"]\ncases = ["x", "y"]\n'
    entry += 'case.y = { blocked = "caps", quick = true }\n'
    one, two = load_register(own_register(entry, {"a": ""}))
    assert (one.blocked["none"], one.quick, two.blocked["none"], two.quick) == ({"no-route"}, False, {"caps"}, True)
    assert set(one.engines) < set(ENGINES)


def test_the_page_has_every_route_and_no_wrong_one() -> None:
    page = Path(__file__).parents[2] / "docs" / "egress.md"
    if not page.exists():
        pytest.skip("the documentation is not beside the tests")
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert {route.name for route in ROUTES} <= {line.split(" | ")[0][2:] for line in lines}
    assert not [line for line in lines if "! |" in line]
