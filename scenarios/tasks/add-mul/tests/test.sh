#!/bin/sh
# Harbor's verifier of add-mul, for harnesses that know nothing of caisson.toml. Needs python3 alone.
# One file is read, no module of the working directory is imported by the checker, and an answer counts only
# when it comes back as text over a pipe.
mkdir -p /logs/verifier
if python3 -I "$(dirname "$0")/check.py" "$PWD"; then reward=1; else reward=0; fi
printf '%s\n' "$reward" > /logs/verifier/reward.txt
