"""Ask a MemeCourt service for verdicts: the public contract and a typed client."""

from importlib import metadata


def __getattr__(name: str) -> str:
    # Read when it is asked for: a copy of this folder that was not installed has no version.
    if name == "__version__":
        return metadata.version("memecourt")
    raise AttributeError(name)
