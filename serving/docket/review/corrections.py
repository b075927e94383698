"""Verdicts that were overruled as precedents: what a person found of a meme is cited when one like it is tried.

Such a precedent is named after its trial, ``trial:ID``, which is its source as well. It stands as long as the
overruling does: where a later review finds otherwise it is changed or taken out, and a person can take it back at any
time. Each of these is a change of the library with its own who and why, which can itself be revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from court.errors import BadRequest
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
from serving.docket.ports import TrialErased, TrialReader
from serving.docket.store.pictures import picture_of

_MOST_WHY = 2000
_TRIES = 5
"""Of a change to a precedent that others change at the same time."""


class Overrulings(StrEnum):
    """Which overruled verdicts become precedents."""

    NEVER = "never"
    CHOSEN = "chosen"
    """Those of which the reviewer says so."""
    ALWAYS = "always"


def name_of(trial_id: str) -> str:
    """Returns the id and source of the precedent that an overruling of this trial makes."""
    return f"trial:{trial_id}"


class Corrections:
    """Makes precedents of overrulings, and takes them back."""

    def __init__(
        self,
        opened: Opened,
        encoder: Callable[[], Encoder],
        trials: TrialReader,
        overrulings: Overrulings = Overrulings.CHOSEN,
        *,
        own: Mapping[str, Opened] | None = None,
    ) -> None:
        """Changes nothing yet.

        Args:
            opened: Opens what changes the library.
            encoder: Gives what the library was made with; asked in a thread, when a meme is put in.
            trials: Records and their pictures.
            overrulings: Which become precedents.
            own: Opens what changes the libraries of namespaces that have one of their own.
        """
        self._opened = opened
        self._encoder = encoder
        self._trials = trials
        self._own = own or {}
        self.overrulings = overrulings

    def _library(self, record: TrialRecord) -> Opened:
        """Opens the library that precedents were found in for a trial's namespace."""
        return self._own.get(record.opened.meme.namespace, self._opened)

    async def _library_of(self, trial_id: str) -> Opened:
        # Without libraries of namespaces the record need not be read.
        return self._library(await self._trials.record(trial_id)) if self._own else self._opened

    def wanted(self, *, chosen: bool) -> bool:
        """True if an overruling becomes a precedent, given its reviewer's choice."""
        return self.overrulings is Overrulings.ALWAYS or (chosen and self.overrulings is Overrulings.CHOSEN)

    async def of(self, trial_id: str) -> LabelledMeme | None:
        """The precedent that a trial has become; None where it has not, or it was taken back."""
        try:
            opened = await self._library_of(trial_id)
        except TrialErased:
            return None
        return await changed(opened, lambda writer: writer.meme(name_of(trial_id)))

    async def follow(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> Change | None:
        """Brings the library in line with a review that has been kept.

        An overruling puts the meme in where that is wanted, or gives it the other label where it is in. Upholding the
        verdict takes out what an earlier overruling put in. Where the trial was reviewed again while the library was
        being changed, the library follows that as well, and where it was erased, nothing of it stays: whoever comes
        last, the library is as the last review says.

        Args:
            record: Record of the trial.
            review: The last one.
            chosen: True if its reviewer wants a precedent of it.

        Returns:
            The change; None where there was nothing to change.

        Raises:
            BadLibrary: There is no library, or it is damaged.
            BadRequest: The meme has nothing that can be compared, or what is asked does not fit the library.
            Unavailable: The library can't be changed now. The review stands all the same.
        """
        trial_id = record.trial_id
        change = await self._bring(record, review, chosen=chosen)
        while True:
            try:
                record = await self._trials.record(trial_id)
            except TrialErased:
                # Erased while the library was being changed: what was put in meanwhile has to go as well (PR-1).
                await forget(self._library(record), trial_id, who=review.reviewer, why="The trial was erased.")
                return None
            last = record.last(VerdictReviewed)
            if last is None or last.seq <= review.seq:
                return change
            review = last  # who gave it says themselves whether it is to be a precedent
            change = await self._bring(record, review, chosen=False) or change

    async def _bring(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> Change | None:
        for _ in range(_TRIES):
            try:
                return await self._bring_now(record, review, chosen=chosen)
            except (CantChange, NoSuchPrecedent, PrecedentExists):
                continue  # somebody else has changed the same precedent since it was looked at
        # Outside of the loop: the error of the last attempt goes to the caller.
        return await self._bring_now(record, review, chosen=chosen)

    async def _bring_now(self, record: TrialRecord, review: VerdictReviewed, *, chosen: bool) -> Change | None:
        name = name_of(record.trial_id)
        # A meme that nobody could decide is evidence for neither label.
        if review.outcome is ReviewOutcome.UPHELD or review.label is Label.UNDECIDED:
            why = f"The verdict was upheld: {review.reason}"
            return await changed(self._library(record), lambda writer: _without(writer, name, review.reviewer, why))
        wanted = self.wanted(chosen=chosen)
        # Before the library is opened for the change: frames may have to come over the network.
        picture = await self._picture(record) if wanted else None
        return await changed(
            self._library(record), lambda writer: self._put(writer, record, review, picture, wanted=wanted)
        )

    async def take_back(self, trial_id: str, *, who: str, why: str) -> Change:
        """Takes a precedent out that an overruling put in; the overruling itself stands.

        Raises:
            NoSuchPrecedent: The trial is none, or no longer.
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
        # Looked at within the change, since others may have changed the same precedent meanwhile.
        if stands is None and wanted:
            removal = next(
                (r for r in reversed(writer.history(name)) if _took_out(r.change) and not r.revoked_by), None
            )
            # An id is never given to a second meme, so that one which was there before can't be added again.
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
                    categories=_categories(record, review),
                    provenance=Provenance(
                        namespace=record.opened.meme.namespace,
                        language=record.text.language if record.text else "",
                        policy=record.opened.policy.id,
                    ),
                )[0]
            # It was in the library before: revoking its removal brings it back without encoding it anew.
            change = writer.revoke(removal.change.number, who=who, why=why)
            # It comes back with the label that it had, which may be the other one.
            stands = writer.meme(name)
            if stands is None or stands.label is label:
                return change
        if stands is None or stands.label is label:
            return None
        return writer.relabel(name, label, who=who, why=why)


async def forget(opened: Opened, trial_id: str, *, who: str, why: str) -> bool:
    """Takes the precedent of a trial that is being erased out of a library, for good.

    A library on disk is written anew without it, and without what its history held of it. One in a database keeps what
    was taken out in its history, as far as a revocation needs it.

    Args:
        opened: Opens what changes the library.
        trial_id: Id of the trial.
        who: Erases it.
        why: Reason for the removal; stands in the history.

    Returns:
        Whether there was anything of it.

    Raises:
        As :meth:`Corrections.follow`.
    """
    return await forget_precedent(opened, name_of(trial_id), who=who, why=why)


async def forget_precedent(opened: Opened, name: str, *, who: str, why: str) -> bool:
    """Removes any precedent by its id, as :func:`forget`."""

    def work(writer: Writer) -> bool:
        if writer.meme(name) is not None:
            writer.remove(name, who=who, why=_short(why))
        # Also where it was removed before: the history still has it, as far as a revocation needs it.
        known = bool(writer.history(name))
        if known:
            writer.forget()
        return known

    return await changed(opened, work)


def policy_of(record: TrialRecord) -> Policy | None:
    """The policy that a trial was held by, where its words are known: kept with it, or MemeCourt's own."""
    content = getattr(record.opened.policy, "content", None)
    if isinstance(content, Policy):
        return content
    return DEFAULT_POLICY if record.opened.policy.digest == DEFAULT_POLICY.digest else None


def _categories(record: TrialRecord, review: VerdictReviewed) -> tuple[str, ...]:
    """Returns the categories of the clause that a finding of harm rests on."""
    policy = policy_of(record)
    if review.label is not Label.HARMFUL or policy is None:
        return ()
    return tuple(clause.category for clause in policy.clauses if clause.number == review.clause)


def _without(writer: Writer, name: str, who: str, why: str) -> Change | None:
    return None if writer.meme(name) is None else writer.remove(name, who=who, why=_short(why))


def _took_out(change: Change) -> bool:
    return change.kind is ChangeKind.REMOVE


def _short(why: str) -> str:
    if not why.strip():
        raise BadRequest("Say why.", reason="FIELD_MISSING", field="why")
    # Cut and not refused: a reason that the docket takes is longer here by the words before it.
    return why if len(why) <= _MOST_WHY else why[: _MOST_WHY - 1] + "…"
