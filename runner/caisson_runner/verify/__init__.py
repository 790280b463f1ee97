"""How a verdict comes about: the trusting word, the ground truth, the held-out result, the findings, the decision."""

from caisson_runner.verify.check import CaseResult, Check
from caisson_runner.verify.decide import Verdict, decide, truth
from caisson_runner.verify.errors import ExaminerFailed, VerifyError
from caisson_runner.verify.examiner import Examiner, open_examiner
from caisson_runner.verify.findings import Finding, Gathered, findings, gather
from caisson_runner.verify.grader import Grader, Grades, draw_seed
from caisson_runner.verify.intervals import wilson

__all__ = [
    "CaseResult",
    "Check",
    "Examiner",
    "ExaminerFailed",
    "Finding",
    "Gathered",
    "Grader",
    "Grades",
    "Verdict",
    "VerifyError",
    "decide",
    "draw_seed",
    "findings",
    "gather",
    "open_examiner",
    "truth",
    "wilson",
]
