"""Pieces that decide a case: the label without each, and the smallest set whose loss changes it.

The vote of the precedents is taken again without them, exactly. The Judge of a full trial is asked again with pieces
gone, at most once for each piece and as often again for a set.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from court.deadline import run_within
from court.errors import BadRequest, CourtError, ReplyUnusable
from court.events import (
    FlipBasis,
    Flips,
    FlipsSought,
    JudgeRuled,
    ModelCall,
    OddsGiven,
    Piece,
    PieceKind,
    Side,
    Summarised,
    TriedWithout,
)
from court.evidence import search_late
from court.judgment import score_of
from court.meme import Picture
from court.messages import JudgeBrief, Messages
from court.ports import EventSink
from court.precedents import Findings, TallyEntry, Vote, joint_probability, share
from court.precedents import vote as vote_by
from court.record import TrialRecord
from court.recorded_case import NotOnRecord, RecordedCase
from court.recorder import Recorder
from court.second_question import ReopenedCase, reopen, require_same, require_verdict
from court.summary import threshold_of, vote_if_close
from court.trial import Court
from court.verdict import Label, ScoreMeaning, Verdict, rule

P = TypeVar("P")


def flips_of(record: TrialRecord) -> Flips | None:
    """Returns what was sought last, or else follows exactly from the recorded vote; None if neither is there."""
    sought = record.last(FlipsSought)
    return sought.flips if sought else flips_by_vote(record)


def flips_by_vote(record: TrialRecord, *, singles: bool = True) -> Flips | None:
    """Computes which precedents decide a verdict by precedents alone; None for any other."""
    # Precedents are left out of the vote of those that were found. A regression over the whole library stays as it is.
    event, cited = record.verdict_event, record.precedents
    if event is None or cited is None or cited.vote is None or event.ruling is not None or event.copies:
        return None
    # Other scores rest on more than the vote, whose loss would not be told by it.
    if event.verdict.harm_score_meaning is not ScoreMeaning.PRECEDENT_VOTE:
        return None
    try:
        threshold = threshold_of(cited.vote, RecordedCase(record).settings)
    except NotOnRecord:
        return None
    tally, by_vote = cited.findings.tally, _Without(cited.vote, threshold)
    label, score = by_vote.outcome(tally)
    # A record that was altered; the page shows it as such.
    if label is not event.verdict.label:
        return None
    gone = [[entry] for entry in tally[: cited.vote.settings.k]] if singles else []
    smallest = _smallest(by_vote, tally, label)
    if len(smallest) > 1 or (smallest and not singles):
        gone.append(smallest)
    return Flips(
        basis=FlipBasis.VOTE, label=label, score=score, tried=tuple(by_vote.tried(each, tally) for each in gone)
    )


def determined_by_reasons(record: TrialRecord) -> bool | None:
    """True if the smallest set whose loss flips a verdict stands among its stated reasons; None if it is not known."""
    # A verdict by precedents states those that its side cites. A ruling states the argument of its side, the precedents
    # that it reads that way, its clause, and the expert's findings.
    sought, event = record.last(FlipsSought), record.verdict_event
    flips = sought.flips if sought else flips_by_vote(record, singles=False)
    if flips is None or event is None:
        return None
    harmful = event.verdict.label is Label.HARMFUL
    side, reading = (Side.ACCUSER, "harmful") if harmful else (Side.DEFENDER, "harmless")
    if event.ruling is None:
        cited = (event.cites for event in record.all(Summarised) if event.side is side)
        ids, kinds = {id_ for cites in cited for id_ in cites}, set[PieceKind]()
    else:
        ids = {each.id for each in event.ruling.precedents if each.supports == reading}
        ids |= {event.verdict.finding.clause} if event.verdict.finding else set()
        kinds = {PieceKind(side), PieceKind.EXPERT}
    found = flips.smallest
    return found is not None and all(piece.kind in kinds or piece.id in ids for piece in found.without)


@dataclass(frozen=True, slots=True)
class _Without:
    """The vote on the same meme by fewer precedents."""

    vote: Vote
    threshold: float

    def outcome(self, tally: Sequence[TallyEntry], gone: Sequence[TallyEntry] = ()) -> tuple[Label, float | None]:
        # By id, since entries of one vote may be equal in everything else.
        settings, ids = self.vote.settings, {entry.id for entry in gone}
        voters = [entry for entry in tally if entry.id not in ids][: settings.k]
        if not voters:
            return Label.UNDECIDED, None
        # Without the value of a whole vote, which takes five times as long.
        harmful = [entry.label is Label.HARMFUL for entry in voters]
        weighed = share([entry.similarity for entry in voters], harmful, settings)
        score = joint_probability(weighed, settings, self.vote.regression)
        return Label.HARMFUL if score >= self.threshold else Label.NOT_HARMFUL, score

    def tried(self, gone: Sequence[TallyEntry], tally: Sequence[TallyEntry]) -> TriedWithout:
        label, score = self.outcome(tally, gone)
        pieces = tuple(Piece(kind=PieceKind.PRECEDENT, id=entry.id) for entry in gone)
        return TriedWithout(without=pieces, label=label, score=score)


def _smallest(by_vote: _Without, tally: Sequence[TallyEntry], label: Label) -> list[TallyEntry]:
    """Returns a smallest set of entries whose loss changes the label; empty if only the loss of all does."""
    if len(tally) == 1:
        return list(tally)

    def gone(first: int, more: int) -> list[TallyEntry]:
        # Given the nearest entry that stays, weights are fixed, and the loss of the nearest others with the verdict's
        # label moves the share farthest.
        return [*tally[:first], *[entry for entry in tally[first + 1 :] if entry.label is label][:more]]

    def flips(entries: Sequence[TallyEntry]) -> bool:
        return by_vote.outcome(tally, entries)[0] is not label

    best = list[TallyEntry]()
    for first in range(len(tally)):
        # Only a set that is smaller than the best: most verdicts hang on none, and one look says so.
        most = (len(best) or len(tally)) - 1 - first
        if most >= 0 and flips(gone(first, most)):
            best = gone(first, bisect_left(range(most), x=True, key=lambda more: flips(gone(first, more))))
    return best


def pieces_of(brief: JudgeBrief[P], verdict: Verdict) -> tuple[Piece, ...]:
    """Returns the pieces that a Judge was shown and can do without, those that stand last in its prompt first."""
    # So each request shares the longest beginning with the one before it, which the server has in its cache.
    clause = verdict.finding.clause if verdict.finding else ""
    numbers = [each.number for each in brief.policy.clauses]
    ruled_by = clause if clause in numbers and len(numbers) > 1 else ""
    shown = {
        PieceKind.DEFENDER: brief.defender,
        PieceKind.ACCUSER: brief.accuser,
        PieceKind.EXPERT: brief.claims,
        PieceKind.DESCRIPTION: brief.description,
        # Without a picture, the text is the meme.
        PieceKind.TEXT: brief.text.strip() if brief.pictures else "",
    }
    return (
        *(Piece(kind=kind) for kind, words in shown.items() if words),
        *(Piece(kind=PieceKind.PRECEDENT, id=each.precedent.id) for each in reversed(brief.exhibits)),
        # In the system message, so that without it nothing is in the cache.
        *([Piece(kind=PieceKind.CLAUSE, id=ruled_by)] if ruled_by else []),
    )


def brief_without(brief: JudgeBrief[P], pieces: Collection[Piece], findings: Findings | None) -> JudgeBrief[P]:
    """Returns a Judge's brief without some pieces; the vote that it is shown is taken without those precedents."""
    kinds = {piece.kind for piece in pieces}
    ids = {piece.id for piece in pieces if piece.kind is PieceKind.PRECEDENT}
    clauses = {piece.id for piece in pieces if piece.kind is PieceKind.CLAUSE}
    policy, vote = brief.policy, brief.vote
    # The Judge sees a policy without the clause, not one that says that something is missing.
    if clauses:
        others = tuple(clause for clause in policy.clauses if clause.number not in clauses)
        policy = policy.model_copy(update={"clauses": others})
    if ids and vote is not None and findings is not None:
        tally = [entry for entry in findings.tally if entry.id not in ids]
        vote = vote_by(tally, vote.settings, vote.regression) if tally else None
    return dataclasses.replace(
        brief,
        policy=policy,
        vote=vote,
        exhibits=tuple(each for each in brief.exhibits if each.precedent.id not in ids),
        accuser="" if PieceKind.ACCUSER in kinds else brief.accuser,
        defender="" if PieceKind.DEFENDER in kinds else brief.defender,
        claims="" if PieceKind.EXPERT in kinds else brief.claims,
        description=None if PieceKind.DESCRIPTION in kinds else brief.description,
        text="" if PieceKind.TEXT in kinds else brief.text,
        language="" if PieceKind.TEXT in kinds else brief.language,
    )


def request_without(
    brief: JudgeBrief[P], flips: Flips, pieces: Collection[Piece], findings: Findings | None, *, chars: int
) -> Messages[P]:
    """Builds the request to a Judge without some pieces."""
    fewer = brief_without(brief, pieces, findings)
    return fewer.odds()[0 if flips.harmful_first else 1] if flips.basis is FlipBasis.ODDS else fewer.rule(chars)


async def seek_flips(
    court: Court,
    record: TrialRecord,
    picture: Picture | None,
    *,
    keep: EventSink,
    within_s: float | None = None,
    batch: bool = False,
) -> FlipsSought:
    """Seeks what would have flipped a verdict, and records it; the verdict stays.

    Raises:
        BadRequest: The trial has no verdict, nothing was weighed for it, or no model is loaded; nothing is recorded.
        CantResume: The trial used other versions than are loaded now, or its picture or a precedent's has changed;
            nothing is recorded.
        CourtError: Not a single answer could be had, or the event could not be stored.
    """
    require_verdict(record)
    event = record.verdict_event
    assert event is not None, "a decided trial has a verdict"
    if event.verdict.label is Label.UNDECIDED or event.copies:
        raise BadRequest("Nothing was weighed in this trial, so that no piece of it decides.", reason="NOTHING_WEIGHED")
    if event.ruling is None:
        return await _searched_again(court, record, picture, keep)
    reopened = await reopen(
        court, record, picture, keep=keep, within_s=within_s, batch=batch, judge=max(event.judge, 1)
    )
    least_mass, cited = court.settings.least_label_mass, record.precedents
    search = _JudgeSearch(
        reopened=reopened,
        basis=_basis(record, least_mass),
        findings=cited.findings if cited else None,
        verdict=event.verdict,
        least_mass=least_mass,
    )
    failure = ""
    with reopened.recorder.usage.counting():
        try:
            await search.run()
        except CourtError as error:
            if not search.tried:
                raise
            failure = error.reason
    return await reopened.recorder.record(
        FlipsSought, flips=search.flips, failure=failure, fence_mark=reopened.brief.fence.mark
    )


def _basis(record: TrialRecord, least_mass: float) -> Flips:
    """Returns the means by which a Judge is asked again: odds in an order in which they agree with the label."""
    event = record.verdict_event
    assert event is not None, "a decided trial has a verdict"
    label = event.verdict.label
    panel = next((each for each in record.all(JudgeRuled) if each.judge == event.judge), None)
    odds = panel.odds if panel else event.odds
    # One order costs half as many calls as two, and the difference to the base is within one order.
    for place, harmful_first in enumerate((True, False)):
        score = score_of(_one_order(odds, place), least_mass) if odds else None
        # Odds that contradict the label can't say what would change it.
        if score is not None and _by_odds(score) is label:
            return Flips(basis=FlipBasis.ODDS, label=label, score=score, harmful_first=harmful_first, tried=())
    return Flips(basis=FlipBasis.RULING, label=label, tried=())


def _one_order(odds: OddsGiven, place: int) -> OddsGiven:
    one = {"harmful": odds.harmful[place : place + 1], "not_harmful": odds.not_harmful[place : place + 1]}
    return odds.model_copy(update=one)


def _by_odds(score: float) -> Label:
    return Label.HARMFUL if score >= 0.5 else Label.NOT_HARMFUL


@dataclass(slots=True)
class _JudgeSearch:
    """Asks a Judge again with pieces gone."""

    reopened: ReopenedCase
    basis: Flips
    findings: Findings | None
    verdict: Verdict
    least_mass: float
    tried: list[TriedWithout] = field(default_factory=list)

    @property
    def flips(self) -> Flips:
        return self.basis.model_copy(update={"tried": tuple(self.tried)})

    async def run(self) -> None:
        pieces = pieces_of(self.reopened.brief, self.verdict)
        moved = [(await self._ask([piece]), piece) for piece in pieces]
        # A single piece is the smallest set that there can be.
        if self.flips.smallest is not None:
            return
        rest = [piece for _, piece in sorted(moved, key=lambda each: -each[0])]
        most, needed = 2 * len(pieces), list[Piece]()
        if not await self._flips_without(rest):
            return
        # The last piece of the shortest flipping beginning is needed; then again with that one and those before it.
        while rest:
            # No single piece flips it, as has been asked; two may be the whole set.
            if len(needed) > 1 and await self._flips_without(needed):
                return
            fewest, enough = max(2 - len(needed), 1), len(rest)
            while fewest < enough and len(self.tried) < most:
                half = (fewest + enough) // 2
                if await self._flips_without([*needed, *rest[:half]]):
                    enough = half
                else:
                    fewest = half + 1
            if len(self.tried) >= most:
                return
            needed.append(rest[enough - 1])
            rest = rest[: enough - 1]

    async def _flips_without(self, pieces: Sequence[Piece]) -> bool:
        await self._ask(pieces)
        return self.basis.flips(self.tried[-1])

    async def _ask(self, pieces: Sequence[Piece]) -> float:
        """Asks without some pieces; returns how far that moves the case away from its label."""
        judge, basis, brief = self.reopened.judge, self.basis, self.reopened.brief
        call: ModelCall | None = None
        label, score, harm = None, None, 0.0
        try:
            if basis.basis is FlipBasis.ODDS:
                request = request_without(brief, basis, pieces, self.findings, chars=judge.speaker.reply_chars)
                odds = await judge.odds_in_one_order(request, harmful_first=basis.harmful_first)
                if odds is not None:
                    call, score = odds.call, score_of(odds, self.least_mass)
                if score is not None:
                    label, harm = _by_odds(score), score
            else:
                reply = await judge.rule_once(brief_without(brief, pieces, self.findings))
                harmful, harmless = reply.value.harmful_strength, reply.value.harmless_strength
                call, label, harm = reply.call, rule(harmful, harmless), float(harmful.level - harmless.level)
        # Recorded as tried without an outcome: a call was made, and repeating it could fail again.
        except ReplyUnusable:
            pass
        self.tried.append(TriedWithout(without=tuple(pieces), label=label, score=score, call=call))
        return 0.0 if label is None else harm if basis.label is Label.NOT_HARMFUL else -harm


async def _searched_again(court: Court, record: TrialRecord, picture: Picture | None, keep: EventSink) -> FlipsSought:
    """Adds to the exact flips of a vote what the precedents of the text or of the picture alone would give."""
    require_same(court, record, picture)
    exact, text = flips_by_vote(record), record.text
    if exact is None or text is None:
        raise BadRequest("This record has no vote that gives its verdict.", reason="NOTHING_WEIGHED")
    settings, tried = court.settings, list(exact.tried)
    # With the same settings as the trial, since only the piece may differ.
    halves = {PieceKind.TEXT: ("", picture), PieceKind.PICTURE: (text.text, None)}
    for kind, (words, shown) in halves.items() if picture and text.text.strip() else ():
        finding = court.finder.find(
            text=words,
            frames=shown.frames if shown else (),
            pixels_sha256=shown.pixels_sha256 if shown else "",
            exhibits=settings.exhibits,
            tally=settings.tally,
            alpha=settings.alpha,
        )
        findings = await run_within(finding, settings.find_s, search_late)
        vote = vote_if_close(findings)
        by_vote = _Without(vote, threshold_of(vote, settings)) if vote else None
        label, score = by_vote.outcome(findings.tally) if by_vote else (Label.UNDECIDED, None)
        tried.append(TriedWithout(without=(Piece(kind=kind),), label=label, score=score))
    # Sets last, as for a Judge.
    flips = exact.model_copy(update={"tried": tuple(sorted(tried, key=lambda each: len(each.without)))})
    return await Recorder(record.trial_id, keep, court.now, record.events).record(FlipsSought, flips=flips)
