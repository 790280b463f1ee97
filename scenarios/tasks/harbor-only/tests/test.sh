#!/bin/sh
cd /app
if python3 -m pytest -q /tests/test_impl.py >&2; then echo 1; else echo 0; fi > /tmp/reward
cp /tmp/reward /logs/verifier/reward.txt
