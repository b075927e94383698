"""Files through which a program runs: those a reader opens to follow it."""

import inspect
import sys
import threading
from contextlib import contextmanager

from tests.support.paths import ROOT


class Walk:
    """A profiler that notes the files in which functions run, in this thread and those started later."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.on = True

    def __call__(self, frame, event, argument) -> None:
        code = frame.f_code
        # The body of a module or class runs while it is imported, and belongs to no path.
        if self.on and event == "call" and code.co_flags & inspect.CO_OPTIMIZED and not self._imports(frame):
            self.names.add(code.co_filename)

    @staticmethod
    def _imports(frame) -> bool:
        """True for a comprehension at the top of a module."""
        caller = frame.f_back
        return frame.f_code.co_name.startswith("<") and caller is not None and caller.f_code.co_name == "<module>"

    @contextmanager
    def followed(self):
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def files(self, *folders) -> list[str]:
        """The modules below these folders of the project."""
        below = tuple(f"{ROOT}/{folder}/" for folder in folders)
        found = {name for name in self.names if name.startswith(below) and name.endswith(".py")}
        return sorted(name.removeprefix(f"{ROOT}/") for name in found)
