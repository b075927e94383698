"""Whether a server grows with what it has answered: its memory after 100,000 requests over that after 10,000.

Most are known memes under fresh names, one in fifty is a meme that nobody has asked about: caches are full by the first
reading, so what comes later ought to find its place in the room that was there. The server's own process is measured;
those that it starts hold no requests between two calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.perf.bench import Result
from eval.perf.load.clients import Job, ask
from eval.perf.load.process import Held, Process, served, settled
from eval.perf.load.service import first_answers, known_memes

_NEW = 50
"""One in so many requests is about a meme that is new."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is asked.

    Attributes:
        early: Requests before the first reading.
        late: Requests before the second, the early ones included.
        memes: Known ones.
    """

    early: int = 10_000
    late: int = 100_000
    memes: int = 64


def measure(size: Scale | None = None) -> Result:
    """Runs the benchmark.

    Raises:
        RuntimeError: The server did not start, or a request was not answered.
    """
    size = size or Scale()
    with TemporaryDirectory(prefix="memecourt-memory-") as directory:
        place = Path(directory)
        requests = known_memes(place, size.memes)
        with served(place / "home") as server:
            first_answers(server, requests)
            early = _asked(server, requests, size.early)
            late = _asked(server, requests, size.late - size.early)
    return Result(
        name="memory",
        figures={
            "late_over_early": round(late.memory / early.memory, 4),
            "early_mib": round(early.memory, 1),
            "late_mib": round(late.memory, 1),
            "more_handles": late.handles - early.handles,
            "more_threads": late.threads - early.threads,
            "requests": size.late,
            "loadavg": round(os.getloadavg()[0], 2),
        },
        goals={"late_over_early": "<= 1.1"},
    )


def _asked(server: Process, requests: list[str], count: int) -> Held:
    """What the server holds when so many more have been answered and their callers have gone."""
    new = count // _NEW
    for number, text in ((count - new, ""), (new, "A new text with number")):
        if number:
            job = Job(server.address, requests, seconds=36_000.0, warm_s=0.0, most=number, text=text)
            ask(job).require_all_answered()
    return settled(server)
