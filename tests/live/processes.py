"""The processes of this machine, as Linux tells them; ``ps`` is not everywhere."""

from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    state: str
    args: str


def processes():
    """All that there are at the moment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, args = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        state, parent, group = stat.rpartition(")")[2].split()[:3]  # a name may hold spaces and brackets
        found.append(Process(int(folder.name), int(parent), int(group), state, args.replace(b"\0", b" ").decode()))
    return found


def group(leader):
    """Process ids of a process group that are more than waiting to be reaped."""
    return {each.pid for each in processes() if each.group == leader and each.state != "Z"}
