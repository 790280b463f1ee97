"""Reads a test log on stdin and says whether the tests passed, as log-parsing harnesses do."""

import re
import sys

log = sys.stdin.read()
passed, failed = re.findall(r"(\d+) passed", log), re.findall(r"(\d+) (?:failed|error)", log)
sys.exit(0 if passed and not failed else 1)
