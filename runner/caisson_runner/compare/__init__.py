"""`caisson-run compare`: what each witness sees of the same deeds, what it costs, and whether the box can tell.

The deeds are the routes of ``scenarios/routes/witness``: standalone scripts that do one thing a box can do and write
down what they did. Each runs in a fresh box under every witness; `matching` holds what was done against what was seen.
"""
