import pool


def dot(xs, ys):
    result = pool.empty(1)
    result[0] = sum(x * y for x, y in zip(xs, ys))
    return result
