"""Corrections: turns overruled verdicts into precedents, which are cited when a similar meme is tried.

Such a precedent is named after its trial, ``trial:ID``, which is also its source. It lasts as long as the overruling: a
later review that differs changes or removes it, and a person can withdraw it at any time. Each of these is a change of
the library with its author and reason, and can itself be revoked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from court.errors import BadRequest, CourtError
from court.events import ReviewOutcome, VerdictReviewed
from court.meme import Picture
from court.policy import DEFAULT_POLICY, Policy
from court.precedents import PrecedentLabel
from court.record import TrialRecord
from court.verdict import Label
from retrieval.embed.encoder import Encoder
from retrieval.library.changes import CantChange, Change, ChangeKind, NoSuchPrecedent, PrecedentExists
from retrieval.library.edit import Opened, add_precedent, changed
from retrieval.library.manifest import LabelledMeme
from retrieval.library.ports import Writer
from retrieval.library.sources import Provenance
from serving.docket.errors import TrialErased, TrialUnknown
from serving.docket.ports import TrialReader
from serving.docket.store.pictures import picture_of
from serving.docket.store.reviews import settled_at

if TYPE_CHECKING:
    from serving.docket.review.queue import ReviewQueue

_log = logging.getLogger("memecourt.console")
_MOST_WHY = 2000
_POLL_S = 1.0
_ATTEMPTS = 5
"""Maximum number of attempts to change a precedent that others change concurrently."""


class Overrulings(StrEnum):
    """Which overruled verdicts become precedents."""

    NEVER = "never"
    CHOSEN = "chosen"
    """Those that the reviewer chooses."""
    ALWAYS = "always"


def name_of(trial_id: str) -> str:
    """Returns the id and source of the precedent that an overruling of this trial makes."""
    return f"trial:{trial_id}"


async def keep_precedents(corrections: Corrections, queue: ReviewQueue) -> None:
    """Has the library of precedents follow reviews from consoles until cancelled."""
    while True:
        try:
            await corrections.catch_up(queue)
        except CourtError as error:
            _log.warning("the library can't follow reviews now: reason=%s", error.reason)
        await asyncio.sleep(_POLL_S)


class Corrections:
    """Makes precedents of overrulings, and withdraws them."""

    def __init__(
        self,
        opened: Opened,
        encoder: Callable[[], Encoder],
        trials: TrialReader,
        overrulings: Overrulings = Overrulings.CHOSEN,
        *,
        own: Mapping[str, Opened] | None = None,
    ) -> None:
        """Prepares for corrections.

        Args:
            encoder: Returns the library's encoder; called in a thread when a meme is added.
        """
        self._opened = opened
        self._encoder = encoder
        self._trials = trials
        self._own = own or {}
        self.overrulings = overrulings

    def _library(self, record: TrialRecord) -> Opened:
        """Returns the library of a trial's namespace."""
        return self._own.get(record.opened.meme.namespace, self._opened)

    async def _library_of(self, trial_id: str) -> Opened:
        # The record is only needed if namespaces have their own libraries.
        return self._library(await self._trials.record(trial_id)) if self._own else self._opened

    def wanted(self, *, chosen: bool) -> bool:
        """True if an overruling becomes a precedent, given its reviewer's choice."""
        return self.overrulings is Overrulings.ALWAYS or (chosen and self.overrulings is Overrulings.CHOSEN)

    async def of(self, trial_id: str) -> LabelledMeme | None:
        """Returns the precedent made from a trial; None if there is none, or it was withdrawn."""
        try:
            opened = await self._library_of(trial_id)
        except TrialErased:
            return None
        return await changed(opened, lambda writer: writer.meme(name_of(trial_id)))

    async def follow(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> Change | None:
        """Updates the library after a stored review.

        An overruling adds the meme if wanted, or relabels it if it is already there. Upholding the verdict removes what
        an earlier overruling added. If the trial is reviewed again or erased while the library is being changed, this
        is applied too, so that the library always matches the last review.

        Returns:
            The change; None if there was nothing to change.

        Raises:
            BadLibrary: There is no library, or it is damaged.
            BadRequest: The meme has nothing that can be compared, or does not fit the library.
            Unavailable: The library can't be changed now. The review still stands.
        """
        trial_id = record.trial_id
        change = await self._bring(record, review, chosen=chosen)
        while True:
            try:
                record = await self._trials.record(trial_id)
            except TrialErased:
                # Erased while the library was being changed: what was added meanwhile must be removed too (PR-1).
                await forget(self._library(record), trial_id, who=review.reviewer, why="The trial was erased.")
                return None
            last = record.review
            # One that can still be undone is followed later.
            if last is None or last.seq <= review.seq or settled_at(last) > datetime.now(UTC):
                return change
            review = last  # the caller of that review decides whether it becomes a precedent
            change = await self._bring(record, review, chosen=False) or change

    async def _bring(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> Change | None:
        for _ in range(_ATTEMPTS):
            try:
                return await self._bring_now(record, review, chosen=chosen)
            except (CantChange, NoSuchPrecedent, PrecedentExists):
                continue  # somebody else has changed the same precedent meanwhile
        # The last attempt is outside of the loop, so that its error is raised.
        return await self._bring_now(record, review, chosen=chosen)

    async def _bring_now(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> Change | None:
        name = name_of(record.trial_id)
        # An undecided meme is evidence for neither label.
        if review.outcome is ReviewOutcome.UPHELD or review.label is Label.UNDECIDED:
            why = f"The verdict was upheld: {review.reason}"
            return await changed(
                self._library(record),
                lambda writer: writer.remove(name, who=review.reviewer, why=_short(why)) if writer.meme(name) else None,
            )
        wanted = self.wanted(chosen=chosen)
        # Before the library is opened for the change, since frames may come over the network.
        picture = await self._picture(record) if wanted else None
        return await changed(
            self._library(record), lambda writer: self._put(writer, record, review, picture, wanted=wanted)
        )

    async def catch_up(self, queue: ReviewQueue) -> None:
        """Follows the reviews from the console that can't be withdrawn any more. Raises Unavailable."""
        for trial_id, seq in await queue.due():
            failure, retryable = "", True
            try:
                record = await self._trials.record(trial_id)
                review = next((one for one in record.reviews if one.seq == seq), None)
                if review is not None:
                    await self.follow(record, review, chosen=review.precedent)
            except TrialUnknown:
                continue  # erased just now, and this with it
            except CourtError as error:
                # The review stands, and its case's page says why the library does not follow it yet.
                _log.warning("precedent of trial=%s not changed reason=%s", trial_id, error.reason)
                failure, retryable = error.reason, not isinstance(error, BadRequest)
            await queue.followed(trial_id, seq, failure, retryable=retryable)

    async def take_back(self, trial_id: str, *, who: str, why: str) -> Change:
        """Withdraws the precedent of an overruling; the overruling itself stands.

        Raises:
            NoSuchPrecedent: The trial has no precedent (any more).
            As :meth:`follow`.
        """
        opened = await self._library_of(trial_id)
        return await changed(opened, lambda writer: writer.remove(name_of(trial_id), who=who, why=_short(why)))

    async def _picture(self, record: TrialRecord) -> Picture | None:
        meme = record.opened.meme
        frames = await self._trials.frames(meme.pixels_sha256)
        return picture_of(meme, frames) if frames else None

    def _put(
        self, writer: Writer, record: TrialRecord, review: VerdictReviewed, picture: Picture | None, *, wanted: bool
    ) -> Change | None:
        name, who = name_of(record.trial_id), review.reviewer
        why = _short(f"{record.verdict.label if record.verdict else 'No verdict'} was overruled: {review.reason}")
        label: PrecedentLabel = Label.HARMFUL if review.label is Label.HARMFUL else Label.NOT_HARMFUL
        stands = writer.meme(name)
        # Checked within the change, since others may have changed the same precedent meanwhile.
        if stands is None and wanted:
            removals = [one for one in writer.history(name) if one.change.kind is ChangeKind.REMOVE]
            removal = next((one for one in reversed(removals) if not one.revoked_by), None)
            # An id is never reused, so a precedent that was removed can't be added again.
            if removal is None:
                return add_precedent(
                    writer,
                    self._encoder(),
                    id_=name,
                    label=label,
                    text=record.text.text if record.text else "",
                    picture=picture,
                    who=who,
                    why=why,
                    source=name,
                    # Without its picture, the precedent is not the whole meme that was reviewed.
                    binding=picture is not None or not record.opened.meme.picture_given,
                    categories=_categories(record, review),
                    provenance=Provenance(
                        namespace=record.opened.meme.namespace,
                        language=record.text.language if record.text else "",
                        policy=record.opened.policy.id,
                    ),
                )[0]
            # It was in the library before: revoking its removal restores it without encoding it again.
            change = writer.revoke(removal.change.number, who=who, why=why)
            # It is restored with its former label, which may be the other one.
            stands = writer.meme(name)
            if stands is None or stands.label is label:
                return change
        if stands is None or stands.label is label:
            return None
        return writer.relabel(name, label, who=who, why=why)


async def forget(opened: Opened, trial_id: str, *, who: str, why: str) -> bool:
    """Deletes the precedent of an erased trial from a library for good.

    A library on disk is rewritten without it, including its history. One in a database keeps in its history what a
    revocation of the removal needs.

    Returns:
        True if there was anything to delete.

    Raises:
        As :meth:`Corrections.follow`.
    """
    return await forget_precedent(opened, name_of(trial_id), who=who, why=why)


async def forget_precedent(opened: Opened, name: str, *, who: str, why: str) -> bool:
    """Removes any precedent by its id, as :func:`forget`."""

    def work(writer: Writer) -> bool:
        if writer.meme(name) is not None:
            writer.remove(name, who=who, why=_short(why))
        # Even if it was removed before: the history may still contain it.
        known = bool(writer.history(name))
        if known:
            writer.forget()
        return known

    return await changed(opened, work)


def policy_of(record: TrialRecord) -> Policy | None:
    """Returns the policy of a trial if its text is known: stored with it, or MemeCourt's own."""
    content = getattr(record.opened.policy, "content", None)
    if isinstance(content, Policy):
        return content
    return DEFAULT_POLICY if record.opened.policy.digest == DEFAULT_POLICY.digest else None


def _categories(record: TrialRecord, review: VerdictReviewed) -> tuple[str, ...]:
    """Returns the categories of the clause that a finding of harm is based on."""
    policy = policy_of(record)
    if review.label is not Label.HARMFUL or policy is None:
        return ()
    return tuple(clause.category for clause in policy.clauses if clause.number == review.clause)


def _short(why: str) -> str:
    if not why.strip():
        raise BadRequest("Say why.", reason="FIELD_MISSING", field="why")
    # Truncated rather than refused: a reason that the docket accepts gets a prefix here.
    return why if len(why) <= _MOST_WHY else why[: _MOST_WHY - 1] + "…"
