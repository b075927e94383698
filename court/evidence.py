"""Evidence of one trial: the meme's text, near-duplicates tried before, precedents and their pictures.

Each piece is recorded once. A resumed trial, or a full trial that follows a summary, finds it on record and does not
gather it again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from court import summary
from court.deadline import Deadline, run_within
from court.errors import NotLoaded, Overrun
from court.events import NearDuplicatesFound, PrecedentsCited, TextRead, TextSource
from court.meme import Frame, Meme
from court.ports import DuplicateFinder, PrecedentFinder, TextReader
from court.precedents import Findings, Vote
from court.recorder import EventDraft, Recorder
from court.settings import TrialSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Gathers the evidence of a trial within its deadline."""

    meme: Meme
    namespace: str
    settings: TrialSettings
    text_reader: TextReader | None
    finder: PrecedentFinder
    duplicates: DuplicateFinder | None
    recorder: Recorder
    deadline: Deadline

    async def text(self) -> TextRead:
        """Returns the meme's text, reading it off the picture unless it is on record.

        Raises:
            Overrun, Unavailable: It could not be read in time, or can't be read now.
            NotLoaded: This court has no text reader.
        """
        if known := self.recorder.find(TextRead):
            return known
        # An error instead of judging without text, which may be the only harmful part of a meme.
        if self.text_reader is None:
            raise text_reader_off()
        assert self.meme.picture is not None, "a text that was sent alone is on record since the trial was opened"
        began = time.perf_counter()
        reading = await run_within(
            self.text_reader.read(self.meme.picture), self.deadline.at_most(self.settings.read_s), _reading_late
        )
        return await self.recorder.record(
            TextRead,
            text=reading.text,
            # An empty result is recorded too: a meme without text is judged by its picture and not read again.
            source=TextSource.OCR if reading.lines else TextSource.NONE,
            language=self.meme.language or "",
            lines=reading.lines,
            reader=self.text_reader.identity,
            latency_s=time.perf_counter() - began,
        )

    async def text_and_duplicates(self) -> TextRead:
        """Returns the text, and records near-duplicates, which depend on it. Raises as either does."""
        text = await self.text()
        await self.recorder.record_all(*await self.near_duplicates(text))
        return text

    async def near_duplicates(self, text: TextRead) -> list[EventDraft]:
        """Drafts the event about earlier memes that are near-duplicates of this one; empty where none are found.

        Raises:
            Overrun, Unavailable: They were not searched in time, or could not be.
        """
        # It affects only the reasons for review.
        if self.duplicates is None or self.recorder.find(NearDuplicatesFound):
            return []
        began = time.perf_counter()
        # Text read off the picture may contain misread letters, so the finder tolerates a few differences.
        searching = self.duplicates.find(self.meme.picture, text.text, self.meme.text is None, self.namespace)
        duplicates = await run_within(searching, self.deadline.at_most(self.settings.find_s), _duplicates_late)
        found = {"duplicates": tuple(duplicates), "latency_s": time.perf_counter() - began}
        # An empty result leaves no event: a resumed trial then searches again, which is harmless.
        return [EventDraft(NearDuplicatesFound, found)] if duplicates else []

    async def precedents(self, query: str) -> tuple[Findings, Vote | None]:
        """Returns the precedents for a query and their vote, and records them. Raises as :meth:`search`."""
        findings, vote, drafts = await self.search(query)
        await self.recorder.record_all(*drafts)
        return findings, vote

    async def search(self, query: str) -> tuple[Findings, Vote | None, list[EventDraft]]:
        """Returns precedents, their vote, and the drafts to record, which are empty if they are already on record.

        Raises:
            Overrun, Unavailable: They were not found in time, or could not be.
        """
        if known := self.recorder.find(PrecedentsCited):
            return known.findings, known.vote, []
        began = time.perf_counter()
        finding = self.finder.find(
            text=query,
            frames=self.meme.frames,
            pixels_sha256=self.meme.picture.pixels_sha256 if self.meme.picture else "",
            exhibits=self.settings.exhibits,
            tally=self.settings.tally,
            alpha=self.settings.alpha,
        )
        findings = await run_within(finding, self.deadline.at_most(self.settings.find_s), search_late)
        # Recorded with the precedents: a resumed trial must not vote by a different rule than it began with.
        vote = summary.vote_if_close(findings)
        cited = {"findings": findings, "vote": vote, "latency_s": time.perf_counter() - began}
        return findings, vote, [EventDraft(PrecedentsCited, cited)]

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Reads pictures of precedents by their ids; None if the library has none. Raises as the port does."""
        reading = self.finder.pictures(ids)
        return await run_within(reading, self.deadline.at_most(self.settings.find_s), search_late)


def text_reader_off() -> NotLoaded:
    """Returns the error for a meme without a text in a court without a text reader."""
    return NotLoaded(
        'This court does not read text off pictures. Send the meme\'s text with it, or "" if it has none.',
        reason="TEXT_READER_OFF",
        field="text",
    )


_reading_late = partial(
    Overrun,
    "The text was not read off the picture in time. Try again later, or send the text with it.",
    reason="TEXT_TOO_SLOW",
)
_duplicates_late = partial(
    Overrun, "Memes tried before were not searched in time. Try again later.", reason="SEARCH_TOO_SLOW"
)


def search_late() -> Overrun:
    """Returns the error for a search for precedents, or reading their pictures, that timed out."""
    return Overrun("The precedents were not found in time. Try again later.", reason="SEARCH_TOO_SLOW")
