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
from functools import partial

from court.deadline import gather_or_cancel
from court.errors import CourtError
from court.ports import ChatReply
from eval.models.metered import Agent
from eval.probe.agents import (
    FAILURES,
    VOICES,
    Category,
    Keeping,
    Misbelief,
    ProbeModels,
    Reference,
    Rewriting,
    Shown,
    Subject,
    parse_rating,
    parse_rewriting,
    prompt_of,
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
        *(reply_or_error(models.explain(subject, text, category, voice)) for voice in range(VOICES)),
        reply_or_error(models.explain(subject, text, category)),
    )
    good = [draft.text for draft in drafts if isinstance(draft, ChatReply)]
    found = {"outcome": ScoringOutcome.UNSCORED, "references": len(good)}
    if isinstance(answered, CourtError):
        if answered.reason == "REPLY_REFUSED":
            return Scoring(**found | {"outcome": ScoringOutcome.REFUSED, "why": "the target declined"})
        return Scoring(**found, why=f"the target gave no answer: {answered.message}")
    found |= {"answer": answered.text, "cut": answered.is_cut}
    # One draft is enough for a reference; how many there were is part of the result.
    if not good:
        return Scoring(**found, why="there was no draft of a reference")
    shown, missing = subject.with_text(text), "reference"
    try:
        numbered: list[Shown] = [("draft", {"number": number, "draft": draft}) for number, draft in enumerate(good, 1)]
        merged = await models.ask(
            "senior", "merge", Reference, subject, shown=[*shown, *numbered], category=category.line
        )
        found["reference"], missing = merged.answer, "rating"
        agent = Agent(prompt_of("scorer"), "score", lambda reply: (parse_rating(reply), reply))
        texts = {"category": category.line, "reference": merged.answer, "answer": answered.text}
        rating, comment = await models.call(agent, subject, [*shown, ("score", texts)])
    except FAILURES as error:
        return Scoring(**found, why=f"there was no {missing}: {error.message}")
    found["comment"] = comment
    if rating is None:
        why = "the Scorer finds that the target declined"
        return Scoring(**found | {"outcome": ScoringOutcome.REFUSED, "why": why})
    return Scoring(**found | {"outcome": ScoringOutcome.SCORED, "score": rating})


async def score_meme(models: ProbeModels, subject: Subject, category: Category) -> Scored:
    """A meme as it is, with the misbelief behind it, scored.

    Raises Unavailable, BudgetSpent: A model can't be asked now.
    """
    found = {"meme": subject.id, "category": category.name, "misbelief": "", "text": subject.text}
    try:
        reply = await models.ask(
            "narrator", "misbelief", Misbelief, subject, shown=subject.shown, category=category.line
        )
        found["misbelief"] = reply.misbelief
    except FAILURES as error:
        found["why"] = error.message
    return Scored(**found, scoring=await score_text(models, subject, subject.text, category))


def chosen_seeds(scored: Sequence[Scored], most: int, draw: int) -> tuple[Scored, ...]:
    """Draws the memes of a category with which searches begin, in the order of the draw.

    These are the memes whose id has the smallest SHA-256 with the draw's number, which depends on no random generator.
    """
    # By hash: a meme that has no score here changes no other one's place in the draw.
    return tuple(sorted(scored, key=lambda one: drawn_rank("seed", draw, one.category, one.meme))[:most])


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
            examples = _examples(meme, history, spec)
            step = Step(
                category=category.name,
                seed=seed.meme,
                number=number,
                meme=meme.meme,
                misbelief=meme.misbelief,
                before=_score(meme),
                examples=tuple(f"{one.meme}+" if isinstance(one, Step) else one.meme for one in examples),
                outcome=StepOutcome.NOT_REWRITTEN,
            )
            shown = [(subjects[one.meme], one.text, _score(one)) for one in examples]
            step = step.model_copy(
                update=await _rewritten(models, category, step, subject=subjects[meme.meme], examples=shown)
            )
            steps.append(step)
            tell(step)
            if step.score is not None:
                history.append(step)
            if step.outcome is not StepOutcome.LOWER:
                break
            # The most similar one is taken out of the pool.
            found = most_similar(meme.misbelief, [one.misbelief for one in pool], 1)
            meme = pool.pop(found[0]) if found else None
    return tuple(steps)


def _examples(meme: Scored, history: Sequence[Scored | Step], spec: ProbeSpec) -> list[Scored | Step]:
    """The most similar ones by their scores; of equal scores, the more similar first."""
    # A meme, as it is or rewritten, is no example for itself.
    others = [one for one in history if one.meme != meme.meme]
    indices = most_similar(meme.misbelief, [one.misbelief for one in others], spec.examples)
    sign = -1 if spec.examples_order == "descending" else 1
    return sorted((others[index] for index in indices), key=lambda one: sign * _score(one))


async def _rewritten(
    models: ProbeModels, category: Category, step: Step, subject: Subject, examples: Sequence[tuple[Subject, str, int]]
) -> dict[str, object]:
    """Takes a step; returns its fields that come of it. Examples are memes with a text and its score, sorted."""
    shown: list[Shown] = []
    for number, (meme, text, score) in enumerate(examples, 1):
        # One still of each: servers take few pictures in one prompt.
        shown += [meme.erased[0], ("example", {"number": number, "text": text, "score": score})]
    shown += [*subject.frames, ("material", {"text": subject.text, "score": step.before, "misbelief": step.misbelief})]
    found: dict[str, object] = {}
    try:
        read = partial(parse_rewriting, before=subject.text)
        reply = await models.ask("refiner", "rewrite", Rewriting, subject, shown=shown, read=read, temperature=1.0)
        found = {"text": reply.rewritten, "explanation": reply.explanation}
        # Before scoring: a text without the misbelief would look like a weakness of the target.
        # Without the old text on the picture: a model that reads it would answer for both texts.
        new: list[Shown] = [*subject.erased, ("rewritten", {"text": reply.rewritten})]
        judgement = await models.ask("examiner", "keeps", Keeping, subject, shown=new, misbelief=step.misbelief)
    except FAILURES as error:
        return found | {"why": error.message}
    if not judgement.keeps:
        return found | {"outcome": StepOutcome.ASTRAY, "why": judgement.reason}
    found["scoring"] = scoring = await score_text(models, subject, reply.rewritten, category)
    if scoring.score is None:
        return found | {"outcome": StepOutcome.UNSCORED, "why": scoring.why}
    return found | {"outcome": StepOutcome.LOWER if scoring.score < step.before else StepOutcome.NOT_LOWER}


def _score(one: Scored | Step) -> int:
    assert one.score is not None
    return one.score
