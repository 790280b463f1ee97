#!/bin/bash
# The project's own way to run its tests.
set -e
python3 -m pytest -q test_impl.py
