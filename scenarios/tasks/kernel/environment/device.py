"""A stand-in for an accelerator: work that takes its time, and a stream on which work is done later."""

import threading
import time


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class Stream:
    def __init__(self):
        self.threads = []

    def submit(self, work, *args):
        thread = threading.Thread(target=work, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    def synchronize(self):
        for thread in self.threads:
            thread.join()


default = Stream()
