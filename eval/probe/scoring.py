"""Model scoring (AdamMeme, section 3.2): the quality of a target's explanation of a meme, compared with a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from court.deadline import gather_or_cancel
from court.ports import ChatReply
from eval.probe import agents
from eval.probe.agents import VOICES, NoReply, ProbeModels, Subject
from eval.probe.folder import Pair, Scored, Scoring, ScoringOutcome
from eval.probe.taxonomy import Category, Taxonomy
from eval.session.engine import run_items


async def score_text(models: ProbeModels, subject: Subject, text: str, category: Category) -> Scoring:
    """Scores the target's explanation of a meme with this text.

    The picture is shown without its text, so that it may be the meme's own text or another.

    Raises:
        Unavailable, BudgetSpent: A model can't be asked now.
    """
    # Drafts and answer do not see each other, so they can be asked for at once.
    *drafts, answered = await gather_or_cancel(
        *(_draft(models, subject, text=text, category=category, number=number) for number in range(VOICES)),
        _answer(models, subject, text, category),
    )
    good = [draft.text for draft in drafts if isinstance(draft, ChatReply)]
    if isinstance(answered, NoReply):
        if answered.refused:
            return Scoring(outcome=ScoringOutcome.REFUSED, why="the target declined", references=len(good))
        why = f"the target gave no answer: {answered.what}"
        return Scoring(outcome=ScoringOutcome.UNSCORED, why=why, references=len(good))
    fields = {"references": len(good), "answer": answered.text, "cut": answered.is_cut}
    # One draft is enough for a reference; how many there were is part of the result.
    if not good:
        return Scoring(outcome=ScoringOutcome.UNSCORED, why="there was no draft of a reference", **fields)
    try:
        reference = await agents.merge(models, subject, text=text, category=category, drafts=good)
    except NoReply as none:
        return Scoring(outcome=ScoringOutcome.UNSCORED, why=f"there was no reference: {none.what}", **fields)
    fields["reference"] = reference
    try:
        rating, comment = await agents.score(
            models, subject, text=text, category=category, reference=reference, answered=answered.text
        )
    except NoReply as none:
        return Scoring(outcome=ScoringOutcome.UNSCORED, why=f"there was no rating: {none.what}", **fields)
    if rating is None:
        return Scoring(
            outcome=ScoringOutcome.REFUSED, why="the Scorer finds that the target declined", comment=comment, **fields
        )
    return Scoring(outcome=ScoringOutcome.SCORED, score=rating, comment=comment, **fields)


async def score_all(
    models: ProbeModels,
    subjects: Mapping[str, Subject],
    pairs: Sequence[Pair],
    taxonomy: Taxonomy,
    *,
    concurrency: int,
    tell: Callable[[Scored], None] = lambda _: None,
) -> tuple[Scored, ...]:
    """The memes as they are, scored, in the order of the pairs.

    Raises:
        Unavailable, BudgetSpent: A model can't be asked now.
    """

    async def one(pair: Pair) -> Scored:
        subject = subjects[pair.meme]
        scoring = await score_text(models, subject, subject.text, taxonomy[pair.category])
        return Scored(**pair.model_dump(), text=subject.text, scoring=scoring)

    return tuple(await run_items(pairs, one, concurrency=concurrency, store=lambda _, scored: tell(scored)))


async def _draft(
    models: ProbeModels, subject: Subject, text: str, category: Category, number: int
) -> ChatReply | NoReply:
    try:
        # As a value: raised, it would cancel the other drafts and the answer.
        return await agents.refer(models, subject, text=text, category=category, number=number)
    except NoReply as none:
        return none


async def _answer(models: ProbeModels, subject: Subject, text: str, category: Category) -> ChatReply | NoReply:
    try:
        return await agents.answer(models, subject, text, category)
    except NoReply as none:
        return none
