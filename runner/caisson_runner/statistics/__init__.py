"""What the results of a suite can tell, and what they cannot. Pure functions of counts; `docs/statistics.md` has the
formulae in words and where they come from.
"""

from caisson_runner.statistics.attempts import pass_at_k, pass_hat_k
from caisson_runner.statistics.clustered import Clustered, bootstrap, clustered
from caisson_runner.statistics.outcomes import Outcome, Outcomes, group_by
from caisson_runner.statistics.paired import Comparison, compare, mcnemar, power, smallest_difference
from caisson_runner.statistics.spread import Spread, spread
from caisson_runner.statistics.summary import Summary, summarize

__all__ = [
    "Clustered",
    "Comparison",
    "Outcome",
    "Outcomes",
    "Spread",
    "Summary",
    "bootstrap",
    "clustered",
    "compare",
    "group_by",
    "mcnemar",
    "pass_at_k",
    "pass_hat_k",
    "power",
    "smallest_difference",
    "spread",
    "summarize",
]
