#!/bin/sh
set -e
cat > kernel.py <<'END'
def dot(xs, ys):
    return [sum(x * y for x, y in zip(xs, ys))]


def triangle(n):
    return n * (n - 1) // 2
END
