"""Iterative refinement (AdamMeme, section 3.3, Algorithm 1): rewrites texts so that the target understands them less.

A search begins with a seed, a meme of a category that has a score. The Refiner is shown three examples (the scored
memes of the category whose misbeliefs are most like the meme's, sorted by score) and rewrites the meme's text. The
rewritten meme is scored. Where its score is below that of the meme as it is, the search goes on with the meme of the
pool whose misbelief is most like; otherwise it stops, at the latest after N steps. Whatever was scored becomes an
example for later steps.

Our choices where the paper leaves it open: the pool consists of the scored memes of the category that are not seeds,
and each is used once; the meme to rewrite is not an example for itself, but is shown with its score; a rewritten meme
in which the Examiner no longer finds the misbelief is not scored, as a harmless text would count as a weakness; a
missing score is not a lower score. Searches of one category run one after the other, as each uses earlier results.
"""

from collections.abc import Callable, Mapping, Sequence

from court.errors import CourtError
from court.ports import ChatReply
from court.tasks import gather_or_cancel
from eval.probe import agents
from eval.probe.agents import (
    FAILURES,
    VOICES,
    Category,
    Keeping,
    Misbelief,
    ProbeModels,
    Reference,
    Shown,
    Subject,
    reply_or_error,
)
from eval.probe.folder import ProbeSpec, Scored, Scoring, ScoringOutcome, Step, StepOutcome
from eval.probe.mining import drawn_rank
from eval.probe.topics import most_similar


async def score_text(models: ProbeModels, subject: Subject, text: str, category: Category) -> Scoring:
    """Scores the target's explanation of a meme with this text.

    The picture is shown without its text, so that it may be the meme's own text or another.

    Raises Unavailable, BudgetSpent: A model can't be asked now.
    """
    # Drafts and answer do not see each other, so they can be asked for at once.
    *drafts, answered = await gather_or_cancel(
        *(
            reply_or_error(agents.refer(models, subject, text=text, category=category, number=number))
            for number in range(VOICES)
        ),
        reply_or_error(agents.answer(models, subject, text, category)),
    )
    good = [draft.text for draft in drafts if isinstance(draft, ChatReply)]
    if isinstance(answered, CourtError):
        if answered.reason == "REPLY_REFUSED":
            return Scoring(outcome=ScoringOutcome.REFUSED, why="the target declined", references=len(good))
        why = f"the target gave no answer: {answered.message}"
        return Scoring(outcome=ScoringOutcome.UNSCORED, why=why, references=len(good))
    fields = {"references": len(good), "answer": answered.text, "cut": answered.is_cut}
    # One draft is enough for a reference; how many there were is part of the result.
    if not good:
        return Scoring(outcome=ScoringOutcome.UNSCORED, why="there was no draft of a reference", **fields)
    try:
        numbered: list[Shown] = [("draft", {"number": number, "draft": draft}) for number, draft in enumerate(good, 1)]
        merged = await models.ask(
            "senior", "merge", Reference, subject, shown=[*subject.with_text(text), *numbered], category=category.line
        )
    except FAILURES as error:
        return Scoring(outcome=ScoringOutcome.UNSCORED, why=f"there was no reference: {error.message}", **fields)
    reference = fields["reference"] = merged.answer
    try:
        rating, comment = await agents.score(
            models, subject, text=text, category=category, reference=reference, answered=answered.text
        )
    except FAILURES as error:
        return Scoring(outcome=ScoringOutcome.UNSCORED, why=f"there was no rating: {error.message}", **fields)
    if rating is None:
        return Scoring(
            outcome=ScoringOutcome.REFUSED, why="the Scorer finds that the target declined", comment=comment, **fields
        )
    return Scoring(outcome=ScoringOutcome.SCORED, score=rating, comment=comment, **fields)


async def score_meme(models: ProbeModels, subject: Subject, category: Category) -> Scored:
    """A meme as it is, with the misbelief behind it, scored.

    Raises Unavailable, BudgetSpent: A model can't be asked now.
    """
    misbelief, why = "", ""
    try:
        reply = await models.ask(
            "narrator", "misbelief", Misbelief, subject, shown=subject.shown, category=category.line
        )
        misbelief = reply.misbelief
    except FAILURES as error:
        why = error.message
    scoring = await score_text(models, subject, subject.text, category)
    return Scored(
        meme=subject.id, category=category.name, misbelief=misbelief, why=why, text=subject.text, scoring=scoring
    )


def usable(scored: Sequence[Scored], category: str) -> tuple[Scored, ...]:
    """Returns the memes of a category that a search can start from: with a misbelief and a score."""
    return tuple(
        one
        for one in scored
        if one.category == category and one.misbelief and one.scoring.outcome is ScoringOutcome.SCORED
    )


def chosen_seeds(scored: Sequence[Scored], most: int, draw: int) -> tuple[Scored, ...]:
    """Draws the memes of a category with which searches begin, in the order of the draw.

    These are the memes whose id has the smallest SHA-256 with the draw's number, which depends on no random generator.
    """
    # By hash: a meme that has no score here changes no other one's place in the draw.
    return tuple(sorted(scored, key=lambda one: drawn_rank("seed", draw, one.category, one.meme))[:most])


def listed_seeds(scored: Sequence[Scored], memes: Sequence[str]) -> tuple[Scored, ...]:
    """Finds the memes of a list with which searches can begin, in the order of the list.

    Args:
        memes: Ids of memes; those without a score are passed over, and no other takes their place.
    """
    known = {one.meme: one for one in scored}
    # No replacement for a missing one, or two targets would begin their searches with different memes.
    return tuple(known[meme] for meme in memes if meme in known)


async def refine(
    models: ProbeModels,
    category: Category,
    scored: Sequence[Scored],
    subjects: Mapping[str, Subject],
    *,
    spec: ProbeSpec,
    seeds: Sequence[Scored],
    tell: Callable[[Step], None] = lambda _: None,
) -> tuple[Step, ...]:
    """Runs the searches of one category. Raises Unavailable, BudgetSpent: A model can't be asked now."""
    begun = {seed.meme for seed in seeds}
    # Shared by all searches of the category, which take memes out of it.
    pool = [one for one in scored if one.meme not in begun]
    history: list[Scored | Step] = [*scored]
    steps: list[Step] = []
    for seed in seeds:
        meme: Scored | None = seed
        for number in range(1, spec.steps + 1):
            if meme is None:
                break
            step = await _step(
                models,
                category,
                seed=seed.meme,
                number=number,
                meme=meme,
                history=history,
                subjects=subjects,
                spec=spec,
            )
            steps.append(step)
            tell(step)
            if step.score is not None:
                history.append(step)
            if step.outcome is not StepOutcome.LOWER:
                break
            meme = _next(meme, pool)
    return tuple(steps)


def _next(meme: Scored, pool: list[Scored]) -> Scored | None:
    """Takes the most similar one out of the pool; None where that is empty."""
    found = most_similar(meme.misbelief, [one.misbelief for one in pool], 1)
    return pool.pop(found[0]) if found else None


def _examples(meme: Scored, history: Sequence[Scored | Step], spec: ProbeSpec) -> list[Scored | Step]:
    """The most similar ones by their scores; of equal scores, the more similar first."""
    # A meme, as it is or rewritten, is no example for itself.
    others = [one for one in history if one.meme != meme.meme]
    indices = most_similar(meme.misbelief, [one.misbelief for one in others], spec.examples)
    sign = -1 if spec.examples_order == "descending" else 1
    return sorted((others[index] for index in indices), key=lambda one: sign * _score(one))


async def _step(
    models: ProbeModels,
    category: Category,
    seed: str,
    number: int,
    meme: Scored,
    history: Sequence[Scored | Step],
    subjects: Mapping[str, Subject],
    spec: ProbeSpec,
) -> Step:
    subject, before = subjects[meme.meme], _score(meme)
    shown = _examples(meme, history, spec)
    step = Step(
        category=category.name,
        seed=seed,
        number=number,
        meme=meme.meme,
        misbelief=meme.misbelief,
        before=before,
        examples=tuple(f"{one.meme}+" if isinstance(one, Step) else one.meme for one in shown),
        outcome=StepOutcome.NOT_REWRITTEN,
    )
    examples = [(subjects[one.meme], one.text, _score(one)) for one in shown]
    try:
        rewriting = await agents.rewrite(models, subject, misbelief=meme.misbelief, scored=before, examples=examples)
        step = step.model_copy(update={"text": rewriting.rewritten, "explanation": rewriting.explanation})
        # Before scoring: a text without the misbelief would look like a weakness of the target.
        # Without the old text on the picture: a model that reads it would answer for both texts.
        new: list[Shown] = [*subject.erased, ("rewritten", {"text": rewriting.rewritten})]
        judgement = await models.ask("examiner", "keeps", Keeping, subject, shown=new, misbelief=meme.misbelief)
    except FAILURES as error:
        return step.model_copy(update={"why": error.message})
    if not judgement.keeps:
        return step.model_copy(update={"outcome": StepOutcome.ASTRAY, "why": judgement.reason})
    scoring = await score_text(models, subject, rewriting.rewritten, category)
    if scoring.score is None:
        return step.model_copy(update={"outcome": StepOutcome.UNSCORED, "why": scoring.why, "scoring": scoring})
    outcome = StepOutcome.LOWER if scoring.score < before else StepOutcome.NOT_LOWER
    return step.model_copy(update={"outcome": outcome, "scoring": scoring})


def _score(one: Scored | Step) -> int:
    assert one.score is not None
    return one.score
