"""What one decision of the gate costs, with 1, 100, 1,000 and 10,000 rules, for each step of a request.

Both sides in one run: the gate's decision beside the cheapest one that could be written, a set of names looked up by
string. Aim: at most 20 µs with 1,000 rules. Names come from a pool larger than what the gate remembers ("new names") or
from a handful ("same names"); "one host" is the worst case, where every rule is for the same host.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from caisson_gate.decide import Request, decide
from caisson_gate.policy import Policy, parse
from timing import machine, median, table

HEAD = 'schema = "caisson.gate/v1"\nnetwork_mode = "allowlist"\n'


def spread(rules: int) -> Policy:
    """Rules for as many hosts, exact and wildcard by turns, a tenth of them denials."""
    text = [HEAD]
    for at in range(rules):
        if at % 10 == 9:
            text.append(f'[[deny]]\nid = "d{at}"\nhosts = ["h{at - 1}.zone.test"]\npaths = ["/secret/**"]\n')
        else:
            star = "**." if at % 3 == 1 else ""
            text.append(f'[[allow]]\nid = "a{at}"\nhosts = ["{star}h{at}.zone.test"]\npaths = ["/v1/*", "/docs/**"]\n')
    return parse("".join(text).encode())


def crowded(rules: int) -> Policy:
    """As many rules for one host, each with a path of its own."""
    text = [HEAD]
    text += [f'[[allow]]\nid = "a{at}"\nhosts = ["h.zone.test"]\npaths = ["/p{at}/*"]\n' for at in range(rules)]
    return parse("".join(text).encode())


def each(work: Callable[[Request], object], requests: Iterable[Request]) -> float:
    """Microseconds a call, of this process: what others do on the machine does not count."""
    asked = list(requests)
    begun = time.process_time()
    for request in asked:
        work(request)
    return (time.process_time() - begun) / len(asked) * 1e6


def http(name: bytes, path: bytes) -> Request:
    return Request(
        "http",
        443,
        "https",
        name_dns=name,
        name_sni=name,
        name_host=name,
        method=b"GET",
        path=path,
        address="203.0.113.7",
    )


def kinds(rules: int, count: int, fresh: bool) -> dict[str, list[Request]]:
    """Requests of each step."""
    many = itertools.count()
    names = [
        (f"n{next(many)}.h{at % rules}.zone.test" if fresh else f"h{at % min(rules, 16)}.zone.test").encode()
        for at in range(count)
    ]
    return {
        "dns": [Request("dns", 53, name_dns=name) for name in names],
        "connect": [Request("connect", 443, name_connect=name + b":443") for name in names],
        "tls": [Request("tls", 443, name_dns=name, name_sni=name) for name in names],
        "http": [http(name, b"/docs/a/b/c.html") for name in names],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="requests in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, one round")
    options = parser.parse_args()
    count, rounds = (options.count // 10, 1) if options.quick else (options.count, options.rounds)
    rows: list[list[str]] = []
    for rules in (1, 100, 1_000, 10_000):
        policy = spread(rules)
        names = {pattern.text for rule in policy.allow for pattern in rule.hosts}
        for fresh in (False, True):
            for kind, requests in kinds(rules, count, fresh).items():
                ours = median([each(lambda asked: decide(policy, asked), requests) for _ in range(rounds)])  # noqa: B023
                bare = median([each(lambda asked: asked.name_dns in names, requests) for _ in range(rounds)])  # noqa: B023
                rows.append([f"{rules:,}", "new" if fresh else "same", kind, f"{ours:.1f}", f"{bare:.2f}"])
    for rules in (100, 1_000):
        policy = crowded(rules)
        requests = [http(b"h.zone.test", f"/p{at % rules}/x".encode()) for at in range(count // 10)]
        ours = median([each(lambda asked: decide(policy, asked), requests) for _ in range(rounds)])  # noqa: B023
        rows.append([f"{rules:,}", "one host", "http", f"{ours:.1f}", "–"])
    print(machine())
    table("One decision, microseconds", ["rules", "names", "step", "decide", "set look-up"], rows)


if __name__ == "__main__":
    main()
