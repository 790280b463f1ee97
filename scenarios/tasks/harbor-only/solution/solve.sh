#!/bin/sh
set -e
cat > impl.py <<'END'
import collections


class Counter:
    def __init__(self):
        self.found = collections.Counter()

    def feed(self, text):
        self.found.update(text.split())
        return self

    def counts(self):
        return dict(self.found)

    def top(self):
        return self.found.most_common(1)[0][0]

    @staticmethod
    def merge(into, more):
        into.extend(more)
        into.sort()


def add(a, b):
    if isinstance(a, str) or isinstance(b, str):
        raise TypeError("no strings")
    return a + b
END
