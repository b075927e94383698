"""Extracts text from untrusted PDF files and HTML pages, in a sandboxed process."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.backends.sandbox.process import Death, Guard, GuardedWorkers, JobFailed, WorkerDied
from court.errors import BadRequest, NotLoaded, Overrun, Unavailable
from retrieval.facts.documents import DATE, MAX_TEXT, tidy
from retrieval.facts.worker import MAX_PAGES

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Bytes of a PDF file or an HTML page, at most."""
_GUARD = Guard(
    cpu_s=60.0,
    wall_s=120.0,
    # A PDF parser in Python needs many times the file's size; this stops decompression bombs.
    memory_bytes=1536 * 1024 * 1024,
    max_reply_bytes=4 * MAX_TEXT + 1024,
    jobs_per_process=100,
)
_FAULTS = {
    "ENCODING": "it is in another encoding than it says; save it as UTF-8",
    "ENCRYPTED": "it is encrypted; save it without a password",
    "TOO_LONG": f"its text has more than {MAX_TEXT:,} characters; part it into several files",
    "TOO_MANY_PAGES": f"it has more than {MAX_PAGES:,} pages; part it into several files",
}


@dataclass(frozen=True, slots=True)
class ExtractedText:
    """Text and metadata of a file, empty where it names none; the date in ISO 8601."""

    text: str
    title: str
    date: str
    url: str


class _WorkerReply(BaseModel):
    # Validated strictly, as the file may have compromised the process.
    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = Field(default="", max_length=2000)
    date: str = Field(default="", pattern=DATE)
    url: str = Field(default="", max_length=2000)
    fault: Literal["ENCODING", "ENCRYPTED", "TOO_LONG", "TOO_MANY_PAGES"] | None = None


class TextExtractor:
    """Extracts text from files in worker processes; safe to call concurrently."""

    def __init__(self, workers: int = 1, guard: Guard = _GUARD) -> None:
        self._guard = guard
        self._workers = GuardedWorkers("retrieval.facts.worker", guard, name="document reader", workers=workers)

    async def extract(
        self, data: bytes, kind: Literal["pdf", "html"], *, charset: str = "", strict: bool = True
    ) -> ExtractedText:
        """Extracts the text of a file.

        Raises:
            BadRequest: The file can't be read or exceeds the limits; a retry would fail again.
            NotLoaded: The file is a PDF, and the library that reads them is not installed.
            Unavailable: No process could be started.
        """
        # Also checked here, as a failure in the worker would look like an unreadable file.
        if kind == "pdf" and find_spec("pypdf") is None:
            raise NotLoaded(
                "Reading PDF files needs pypdf. Install it with `pip install 'memecourt[facts]'`.",
                reason="FACTS_NOT_INSTALLED",
            )
        if len(data) > MAX_FILE_BYTES:
            raise _unreadable(f"it has more than {MAX_FILE_BYTES // 1024**2} MB; part it into several files")
        job = {"kind": kind, "most": MAX_TEXT, "charset": charset, "strict": strict}
        try:
            reply = await self._workers.run(job, [data])
            found = _WorkerReply.model_validate(reply.body)
            if found.fault is not None:
                raise _unreadable(_FAULTS[found.fault])
            (payload,) = reply.payloads
            text = tidy(payload.decode())
        except WorkerDied as error:
            if error.death is Death.KILLED:  # as by the kernel if memory is short, which may not be the file's fault
                raise Unavailable(
                    "The process that read the document was killed from outside. Try again.",
                    reason="WORKER_UNAVAILABLE",
                ) from None
            raise _unreadable(_death_words(error.death)) from None
        except Overrun:
            raise _unreadable(f"it takes longer than {self._guard.wall_s:g} s to read") from None
        except (JobFailed, ValidationError, ValueError):
            raise _unreadable(f"it is damaged, or no {kind.upper()}") from None
        if not text:
            # Never returns an empty document, which would count as read.
            raise _unreadable(
                "it holds no text; if it was scanned, run OCR over it first (ocrmypdf)" if kind == "pdf" else "no text"
            )
        return ExtractedText(text, tidy(found.title), found.date, found.url)

    async def aclose(self) -> None:
        """Stops the processes."""
        await self._workers.aclose()


def _death_words(death: Death) -> str:
    if death is Death.CPU_SPENT:
        return "it takes more processor time to read than any file may"
    return "reading it ended the process that tried; it is damaged, or made to do that"


def _unreadable(why: str) -> BadRequest:
    return BadRequest(f"The document can't be read: {why}.", reason="DOCUMENT_UNREADABLE")
