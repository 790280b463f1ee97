"""A grader in one process with what it grades: it holds the expected values while the code under test runs."""

import sys

from scoring import score


def run_tests():
    import impl

    total = 0.0
    for name, args, expected in (("add", (2, 3), 5), ("mul", (3, 4), 12)):
        answer = getattr(impl, name)(*args)
        total += score(answer, expected)
    return total


if __name__ == "__main__":
    sys.exit(0 if run_tests() == 2.0 else 1)
