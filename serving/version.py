"""The version of MemeCourt that runs, as records, metrics and runs name it.

A module of its own: to look it up takes longer than all the rest of `memecourt --help`.
"""

from importlib.metadata import version

SOFTWARE = version("memecourt")
