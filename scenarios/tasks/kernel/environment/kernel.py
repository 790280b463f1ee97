import device


def dot(xs, ys):
    device.busy(0.8)
    total = 0.0
    for x, y in zip(xs, ys):
        total += x * y
    return [total]


def triangle(n):
    total = 0
    for i in range(n):
        total += i
    return total
