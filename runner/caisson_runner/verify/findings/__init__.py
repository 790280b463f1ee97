"""Rules over the record, the gate's log and the state diff. Each finding points at the events and files that show it.

`rules.toml` holds the rules that come with Caisson; `caisson-run … --rules FILE` adds a person's own. What happened is
first put into streams (`streams.py`): one subject for each path, program, connection or process, whatever the number of
events. A rule picks a stream, narrows it by globs and by a condition in CEL, and makes at most one finding.
"""

from caisson_runner.verify.findings.facts import Facts, Gathered, gather
from caisson_runner.verify.findings.model import INFO, VOID, WARN, Change, Finding
from caisson_runner.verify.findings.rules import Rule, Ruleset, RulesMalformed, findings, load_rules, shipped

__all__ = [
    "INFO",
    "VOID",
    "WARN",
    "Change",
    "Facts",
    "Finding",
    "Gathered",
    "Rule",
    "RulesMalformed",
    "Ruleset",
    "findings",
    "gather",
    "load_rules",
    "shipped",
]
