"""The harness's own red team: every known way out of a box, tried for real, with a canary outside as ground truth.

`scenarios/routes/egress` and `scenarios/routes/local` hold one standalone script a route; `caisson-run redteam routes`
runs each in a fresh box in a world of its own (a network namespace with canaries and no way out of it) and says what
was reached, what blocked it and what recorded it.
"""
