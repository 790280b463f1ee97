"""A stand-in for an allocator that hands out freed memory as it is."""

_free = []


def empty(length):
    for index, buffer in enumerate(_free):
        if len(buffer) == length:
            return _free.pop(index)
    return [0.0] * length


def release(buffer):
    _free.append(buffer)
