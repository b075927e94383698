"""Helpers of tests of admission."""


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now
