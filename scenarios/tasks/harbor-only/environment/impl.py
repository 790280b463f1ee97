class Counter:
    def feed(self, text):
        pass

    def counts(self):
        return {}

    def top(self):
        return None

    @staticmethod
    def merge(into, more):
        pass


def add(a, b):
    return a - b
