"""Text of an event, piece by piece, for terminals and paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from court import events as e
from court.audition import INPUTS
from court.checks import in_words
from court.display import word
from court.expert.messages import quoted_source
from court.precedents import Precedent
from court.settings import TrialSettings


@dataclass(frozen=True, slots=True)
class Headline:
    """Headline of an event, which the rest of it explains."""

    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with its name; empty where there is none."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Speech:
    """Quoted speech, in full length."""

    text: str


Piece = Headline | Fact | Speech | Precedent | str
"""A text alone is a remark of one line."""


def pieces_of(event: e.AnyEvent) -> Iterator[Piece]:
    """All that an event says, but for its number, its kind and the messages of its call."""
    match event:
        case e.TrialOpened():
            yield from _opened(event)
        case e.TextRead():
            yield {
                e.TextSource.CALLER: "given by the caller",
                e.TextSource.OCR: f"read off the picture by {event.reader} in {event.latency_s:.2f} s",
                e.TextSource.NONE: "the meme has no text",
            }[event.source]
            for line in event.lines:
                yield Fact(f"{line.confidence:.2f}", f"“{line.text}”")
            # Lines make up the text: where there are some, it would stand here twice.
            if event.text and not event.lines:
                yield Speech(event.text)
        case e.NearDuplicatesFound():
            yield f"memes tried before that are nearly this one, found in {event.latency_s:.3f} s"
            yield from map(_duplicate, event.duplicates)
        case e.PrecedentsCited():
            yield from _cited(event)
        case e.Described():
            yield Speech(event.description)
        case e.QuestionAsked():
            yield f"{word(event.side)}, round {event.round}"
            yield Speech(event.question)
        case e.AnswerGiven():
            yield f"to the {word(event.side)}, round {event.round}"
            yield Speech(event.answer)
        case e.Summarised():
            change = "" if event.entropy_change is None else f", change {event.entropy_change:.3f}"
            yield f"{word(event.side)}, round {event.round}, entropy {event.entropy:.3f} bit{change}"
            yield Speech(event.summary)
            if event.justification:
                yield Speech(event.justification)
            if event.dropped:
                yield Fact("quotes that stand nowhere", ", ".join(f"“{quote}”" for quote in event.dropped))
        case e.SummarisedAhead():
            yield f"{word(event.side)}, round {event.round}, before it was known whether the round counts"
            yield Speech(event.summary)
            yield Speech(event.justification)
        case e.SideRested():
            yield Fact(word(event.side), f"after {event.rounds} rounds: {word(event.reason)}")
        case e.JudgeRuled():
            yield from _opinion(event)
        case e.TrialChecked():
            for side, odds in event.probed.items():
                yield Fact(e.PROBES[side], _odds(odds))
            for failed in event.failed:
                share = "" if failed.share is None else f" ({failed.share:.0%})"
                yield Fact(word(failed.check), f"{in_words(failed)}{share}")
            if event.mistrial:
                yield "a mistrial: a person must look"
        case e.GuardHeard():
            # None is no opinion, which must not read as "not harmful".
            if event.harmful is None:
                yield f"{event.adapter} gave no opinion: {event.failure}"
            else:
                found = "holds the meme for harmful" if event.harmful else "does not hold the meme for harmful"
                yield f"{event.adapter} {found}"
                yield Fact("categories", ", ".join(event.categories))
                if event.reason:
                    yield Speech(event.reason)
        case e.ClaimsFound() | e.ClaimEvent():
            yield from _expert(event)
        case e.VerdictGiven():
            yield from _verdict_pieces(event)
        case e.QuestionRuled():
            yield from _question(event)
        case e.FlipsSought():
            yield from flip_pieces(event.flips)
            yield Fact("ended early", event.failure)
            yield from _unused(event.unused)
        case e.TrialFailed():
            yield Fact("at step", event.step)
            yield from _unused(event.unused)
            advice = "asking again may help" if event.retryable else "asking again will not help"
            yield Speech(f"{event.message} ({event.reason}; {advice})")
        case e.TrialResumed():
            yield Fact("software", f"memecourt {event.software}")
        case e.VerdictReviewed():
            clause = f", clause {event.clause}" if event.clause else ""
            unseen = ", before the verdict was shown" if event.blind else ""
            looked = {e.Look.SHOWN: ", meme seen", e.Look.GONE: ", picture gone"}.get(event.look, "")
            by = f"by {event.reviewer} on {event.at:%Y-%m-%d %H:%M} UTC{unseen}{looked}"
            yield Fact(word(event.outcome), f"{event.label}{clause}, {by}")
            yield Speech(event.reason)
        case e.ReviewWithdrawn():
            yield Fact("withdrawn by", event.by)
        case e.NoteLeft():
            yield Fact("second opinion asked by" if event.second_opinion else "note by", event.by)
            yield Speech(event.note)
        case e.AppealOpened():
            yield Fact("handed in by", event.by)
            if event.reference:
                yield Fact("reference", event.reference)
            yield Speech(event.statement)
        case _:
            # A new kind of event fails the type check here, and is not passed over in silence.
            assert_never(event)


def similarities(precedent: Precedent) -> str:
    """Formats the similarity of a precedent in text and in picture; a dash where either has none."""
    return "  ".join(
        f"{name} {'–' if value is None else format(value, '.3f')}"
        for name, value in (("text", precedent.text_similarity), ("picture", precedent.picture_similarity))
    )


def chosen_settings(opened: e.TrialOpened) -> list[tuple[str, object, object]]:
    """Lists name, value and default of each setting of a trial that differs from its default."""
    default = TrialSettings().model_dump(mode="json")
    return [
        (name, value, default[name])
        for name, value in sorted(opened.settings.items())
        if name in default and value != default[name]
    ]


def _opened(event: e.TrialOpened) -> Iterator[Piece]:
    meme, versions = event.meme, event.versions
    yield Fact("opened", f"{event.at:%Y-%m-%d %H:%M:%S} UTC")
    yield Fact("procedure", word(event.procedure))
    yield Fact("request", event.request_id)
    if event.of_trial:
        yield Fact("once more", f"the meme of trial {event.of_trial}")
    # Either may be missing, and both may be.
    if content_name := "/".join(filter(None, (meme.namespace, meme.content_id))):
        yield Fact("content", content_name)
    if meme.picture_given:
        yield Fact("picture", f"{meme.format}, {meme.width}×{meme.height} pixels, {_frames(meme)}")
        yield Fact("bytes", f"sha256:{meme.bytes_sha256}")
        yield Fact("pixels", f"sha256:{meme.pixels_sha256}")
    else:
        yield Fact("picture", "none was sent")
    yield Fact("policy", f"{event.policy.id} version {event.policy.version}, {event.policy.digest}")
    yield Fact("settings", versions.settings)
    chosen = ", ".join(f"{name} {json.dumps(value)}" for name, value, _ in chosen_settings(event))
    yield Fact("changed", chosen or "none of the defaults")
    yield Fact("software", f"memecourt {versions.software}")
    # Summary trials ask no model, and have neither prompts nor roles.
    if versions.prompts:
        yield Fact("prompts", versions.prompts)
    for role, model in versions.models.items():
        yield Fact(word(role), model)
    yield Fact("encoder", versions.encoder)
    yield Fact("library", versions.library)
    yield Fact("text reader", versions.text_reader)
    yield Fact("trace", event.trace_id)


def _frames(meme: e.MemeIdentity) -> str:
    if meme.frame_count == 1:
        return "one frame"
    return f"frames {', '.join(map(str, meme.frames_used))} of {meme.frame_count}"


def _duplicate(duplicate: e.NearDuplicate) -> str:
    if duplicate.text_alone:
        return f"{duplicate.trial_id}  {word(duplicate.label):<13}text of the same letters, neither with a picture"
    text = "same text" if duplicate.same_text else "other text"
    picture = ", no tile differs" if duplicate.same_picture else ""
    return f"{duplicate.trial_id}  {word(duplicate.label):<13}{duplicate.distance} of 256 bits, {text}{picture}"


def _cited(event: e.PrecedentsCited) -> Iterator[Piece]:
    findings, vote = event.findings, event.vote
    yield (
        f"{findings.library.name}: {findings.library.size:,} memes searched in {event.latency_s:.3f} s, "
        f"weight of the text {findings.search.alpha:.2f}, {findings.search.excluded} left out"
    )
    yield from map(Speech, findings.notes)
    yield from findings.exhibits
    if vote is None:
        yield Fact("vote", "none: no precedent is near enough")
    else:
        yield Fact(
            "vote",
            f"{vote.harmful} of {vote.voters} harmful, weighted share {vote.share:.3f}, "
            f"calibrated {vote.by_precedents:.3f}, threshold {vote.settings.threshold:.3f}",
        )
        if vote.by_regression is not None:
            yield Fact("regression", f"{vote.by_regression:.3f}; both together {vote.probability:.3f}")


def _opinion(event: e.JudgeRuled) -> Iterator[Piece]:
    yield Fact("judge", f"{event.judge} of the panel")
    yield Fact("strengths", event.strengths.in_words)
    yield Fact("own label", word(event.ruling.label))
    if event.odds is not None:
        yield Fact("odds", _odds(event.odds))
    for name, evidence in (("for harm", event.ruling.harmful_evidence), ("against", event.ruling.harmless_evidence)):
        for one in evidence:
            yield Fact(name, one)
    yield Speech(event.rationale)


def _expert(
    event: e.ClaimsFound | e.QueriesPlanned | e.EvidenceSearched | e.DocumentWeighed | e.ClaimSettled,
) -> Iterator[Piece]:
    # First, because what follows may be empty for this reason alone.
    if event.failure:
        yield Fact("failed", event.failure)
    match event:
        case e.ClaimsFound():
            # A meme without claims and a step that failed both have an empty list.
            if not event.claims and not event.failure:
                yield "the meme puts forward no claim of fact"
            for claim in event.claims:
                yield Fact(f"claim {claim.number}", claim.text)
        case e.QueriesPlanned():
            yield f"claim {event.claim}: what to search for"
            yield from map(Speech, event.queries)
        case e.EvidenceSearched():
            yield f"claim {event.claim}, search {event.number} in {event.source_identity}: {len(event.hits)} found"
            yield Speech(event.query)
            if event.held_back:
                yield Fact("left out of it", f"{event.held_back} names, addresses or numbers")
            for hit in event.hits:
                yield Fact(hit.source or "result", ", ".join(filter(None, (hit.title, hit.date, hit.id))))
        case e.DocumentWeighed():
            yield f"claim {event.claim}, document {event.number}{', looked at advice' if event.second_look else ''}"
            yield Fact(event.source or "document", ", ".join(filter(None, (event.title, event.date, event.document))))
            yield Fact("sha256", event.sha256)
            # Only of what was read and weighed: anything else would pass for a finding about the document.
            if event.sha256 and not event.failure:
                yield "evidence" if event.helpful else "put aside" if event.aside else "no evidence"
            yield from map(Speech, event.quotes)
        case e.ClaimSettled():
            yield Fact(f"claim {event.claim}", f"{word(event.label)}, {word(event.because)}")
            yield Fact("documents", f"{event.documents} read" if event.checked else "none could be read")
            for passage in event.evidence:
                yield Fact(quoted_source(passage), passage.quote)


def _odds(odds: e.OddsGiven) -> str:
    return ", ".join(
        f"harmful {harmful:.3f}, not {benign:.3f}"
        # One pair for each order in which the labels were put before the Judge.
        for harmful, benign in zip(odds.harmful, odds.not_harmful, strict=True)
    )


def _verdict_pieces(event: e.VerdictGiven) -> Iterator[Piece]:
    verdict = event.verdict
    yield Headline(str(verdict.label).replace("_", " "))
    yield from (Fact(name, value) for name, value in verdict.facts())
    yield from _unused(event.unused)
    yield Speech(verdict.rationale)
    for review in verdict.review:
        yield Speech(f"a person should look: {review.detail} ({word(review.reason)})")
    if (weighed := event.weighed) is not None:
        inputs = (f"{name} {value:.3f}" for name in INPUTS if (value := getattr(weighed, name)) is not None)
        yield Fact("calibration", f"{weighed.calibration}: {', '.join(inputs)}, checks failed {weighed.failed}")
    for signal in verdict.signals:
        yield Speech(f"less sure: {signal.detail} ({word(signal.reason)})")
    for finding in verdict.claims:
        yield Fact("claim", f"{word(finding.label)}: {finding.claim}")
    for sign in event.steering:
        yield Fact("steering", _sign(sign))


def _question(event: e.QuestionRuled) -> Iterator[Piece]:
    yield Fact("question", event.question.text)
    # None is no answer, which must not read as "none of the labels".
    if event.chosen is None:
        advice = "asking again may help" if event.retryable else "asking again will not help"
        yield Fact("no answer", f"{event.failure}; {advice}")
    else:
        yield Fact("answer", ", ".join(event.chosen) or "none of the labels")
    for option in event.question.weighed if event.strengths else ():
        each = event.strengths[option]
        yield Fact(option, f"{word(each.supporting)} for it, {word(each.opposing)} against it")
    for id_, labels in event.precedent_labels.items():
        yield Fact(f"precedent {id_}", ", ".join(labels) or "none of the labels")
    if event.vote:
        yield Fact("vote", ", ".join(f"{option} {event.vote[option]:.2f}" for option in event.question.options))
    if event.rule:
        yield Fact("rule", event.rule)
    yield from _unused(event.unused)
    if event.rationale:
        yield Speech(event.rationale)


def flip_pieces(flips: e.Flips) -> Iterator[Piece]:
    """Tells what would have flipped a verdict: in a sentence, and piece by piece."""
    yield Speech(flips.in_words)
    yield Fact("by", f"the {word(flips.basis)}{'' if flips.score is None else f', {flips.score:.2f} with everything'}")
    for each in flips.tried:
        found = "no answer" if each.label is None else word(each.label)
        score = "" if each.score is None else f", {each.score:.2f}"
        changed = ": another verdict" if flips.flips(each) else ""
        yield Fact("without", f"{', '.join(piece.in_words for piece in each.without)}: {found}{score}{changed}")
    if flips.risk is not None:
        yield Fact("risk", f"at least {flips.risk:.2f} that the label is wrong, as it rests on one piece")
    if any(each.call for each in flips.tried):
        yield Fact("in the cache", f"{flips.cached_share:.0%} of the tokens read")


def _unused(unused: e.Unused | None) -> Iterator[Piece]:
    """Yields the cost of calls that no other event reports; nothing if there were none."""
    if unused is not None and (unused.calls or unused.unanswered):
        tokens = f"{unused.tokens_in:,} tokens in, {unused.tokens_out:,} out"
        yield Fact("unused", f"{unused.calls} more calls ({tokens}); {unused.unanswered} not answered")


def _sign(sign: e.SteeringFound) -> str:
    where = f"event {sign.event}{', precedent ' + sign.precedent if sign.precedent else ''}"
    where += f", document {sign.document}" if sign.document else ""
    return f"{word(sign.kind)}: {where}, characters {sign.start} to {sign.end}"
