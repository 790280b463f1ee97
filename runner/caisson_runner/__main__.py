"""`python -m caisson_runner` is `caisson-run`."""

from caisson_runner.cli import main

main()
