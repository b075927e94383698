"""The processes of this machine, read from /proc, as ``ps`` is not installed everywhere."""

from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    state: str
    args: str


def processes():
    """Returns all processes that exist at the moment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, args = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended in the meantime
        state, parent, group = stat.rpartition(")")[2].split()[:3]  # a name may hold spaces and brackets
        found.append(Process(int(folder.name), int(parent), int(group), state, args.replace(b"\0", b" ").decode()))
    return found


def group(leader):
    """Returns the process ids of a process group, without zombies."""
    return {process.pid for process in processes() if process.group == leader and process.state != "Z"}
