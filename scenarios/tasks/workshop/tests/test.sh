#!/bin/bash
# What many tasks ship: a runner's environment is sourced if there is one, and pytest's exit becomes the reward.
if [ -f "$HOME/.local/bin/env" ]; then . "$HOME/.local/bin/env"; fi
cd /app
if python3 -m pytest -q /tests/test_graded.py; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
