"""A stand-in for an accelerator: work that takes its time, and a stream on which work is done later."""

import threading
import time


def busy(seconds, sleep=time.sleep):
    sleep(seconds)


def settle():
    """What else a benchmark does before it looks at results: long enough for any work that was begun."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(60)


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
