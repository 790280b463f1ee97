"""The score of one answer."""


def score(answer, expected):
    return 1.0 if answer == expected else 0.0
