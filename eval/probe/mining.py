"""Harmfulness mining (AdamMeme, section 3.1): memes are sorted into kinds of harm, and new kinds are found on the way.

Memes are sorted in batches. A batch uses the categories that existed when it began, and proposals are decided at its
end, in the order of the memes: so the outcome does not depend on the order in which calls return, and a resumed run
makes the same calls. A batch of one is the paper's procedure.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from court.deadline import gather_or_cancel
from court.errors import CourtError, ModelRefused
from eval.models.metered import Agent
from eval.probe.agents import (
    FAILURES,
    VOICES,
    Admission,
    Category,
    Presence,
    ProbeModels,
    Shown,
    Sorting,
    Subject,
    Taxonomy,
    parse_sorting,
    prompt_of,
    reply_or_error,
    sorting_schema,
)
from eval.probe.folder import Mined, Proposal, Sorted

_MAJORITY = VOICES // 2 + 1


async def mine(
    models: ProbeModels,
    subjects: Sequence[Subject],
    taxonomy: Taxonomy,
    *,
    batch: int,
    tell: Callable[[Mined], None] = lambda _: None,
) -> tuple[Mined, ...]:
    """Sorts memes, in their order; categories that are admitted come into ``taxonomy``.

    Raises:
        Unavailable, BudgetSpent: A model can't be asked now.
        ModelRefused: Servers refused the calls about every meme of the first batch, so the cause is not a single meme.
    """
    mined: list[Mined] = []
    for start in range(0, len(subjects), batch):
        part = subjects[start : start + batch]
        votes = await gather_or_cancel(
            *(
                gather_or_cancel(*(reply_or_error(_vote(models, one, taxonomy, voice)) for voice in range(VOICES)))
                for one in part
            )
        )
        # After the first batch the server has accepted some call, so that a refusal concerns the meme.
        every = [vote for voted in votes for vote in voted]
        refused = [vote for vote in every if isinstance(vote, ModelRefused)]
        if not mined and len(refused) == len(every):
            raise refused[0]
        # One after the other: a category that one meme adds is not new for the next.
        for subject, voted in zip(part, votes, strict=True):
            one = await _decide(models, subject, voted, taxonomy)
            mined.append(one)
            tell(one)
    return tuple(mined)


def drawn_rank(what: str, seed: int, category: str, meme: str) -> str:
    """Returns the rank of a meme in a draw: it depends on no other meme, so that targets can be compared."""
    return hashlib.sha256(f"probe {what} {seed}\0{category}\0{meme}".encode()).hexdigest()


def capped(mined: Sequence[Mined], most: int, seed: int) -> tuple[Mined, ...]:
    """Selects the memes of each category to score: at most ``most``, drawn by seed.

    These are the memes whose id has the smallest SHA-256 with the seed and the category: a larger cap only adds memes,
    and the same memes are drawn for every target.
    """
    left = {}
    for name in {name for one in mined for name in one.categories}:
        memes = (one.meme for one in mined if name in one.categories)
        left[name] = set(sorted(memes, key=partial(drawn_rank, "cap", seed, name))[:most])
    return tuple(
        one.model_copy(update={"categories": tuple(name for name in one.categories if one.meme in left[name])})
        for one in mined
    )


async def _vote(models: ProbeModels, subject: Subject, taxonomy: Taxonomy, voice: int) -> Sorting:
    read = partial(parse_sorting, taxonomy=taxonomy)
    agent = Agent(prompt_of("miner"), "sort", read, sorting_schema(taxonomy))
    lines = "\n".join(category.line for category in taxonomy.values())
    shown: list[Shown] = [*subject.shown, ("taxonomy", {"taxonomy": lines}), ("sort", {})]
    return await models.call(agent, subject, shown, chars=1200, temperature=1.0, voice=voice)


async def _decide(
    models: ProbeModels, subject: Subject, voted: Sequence[Sorting | CourtError], taxonomy: Taxonomy
) -> Mined:
    read = [vote for vote in voted if isinstance(vote, Sorting)]
    count = Counter(name for vote in read for name in vote.categories)
    categories = [name for name in taxonomy if count[name] >= _MAJORITY]
    new: dict[str, Category] = {}
    for vote in read:
        if vote.new is not None:
            new.setdefault(vote.new.name, vote.new)  # of two definitions, the first Miner's
    proposals = []
    for proposed in new.values():
        decided = await _proposed(models, subject, proposed, taxonomy)
        proposals.append(decided)
        if decided.admitted:
            taxonomy.setdefault(proposed.name, proposed)
        # Admitted now or by a meme before it in the same batch: the Examiner has seen it in this one.
        if decided.examiner and proposed.name in taxonomy:
            categories.append(proposed.name)
    # A category may have had its majority with the votes that are missing: that is no finding of harmlessness.
    missing = VOICES - len(read)
    open_ = missing >= _MAJORITY or any(votes + missing >= _MAJORITY for votes in count.values())
    return Mined(
        meme=subject.id,
        outcome=Sorted.HARMFUL if categories else Sorted.UNREAD if open_ else Sorted.HARMLESS,
        categories=tuple(categories),
        votes=dict(count),
        miners=len(read),
        proposals=tuple(proposals),
    )


async def _proposed(models: ProbeModels, subject: Subject, category: Category, taxonomy: Taxonomy) -> Proposal:
    """Decides on a proposed category: an unreadable reply counts as no agreement."""
    there = category.name in taxonomy
    try:
        present = (
            await models.ask("examiner", "present", Presence, subject, shown=subject.shown, category=category.line)
        ).present
        fits = False
        # The Judge is asked only where its answer decides something.
        if present and not there:
            known = "\n".join(one.line for one in taxonomy.values())
            admission = await models.ask("judge", "admit", Admission, taxonomy=known, category=category.line)
            fits = admission.distinct and admission.right_grain
    except FAILURES as error:
        return Proposal(category=category, examiner=False, judge=False, why=error.message)
    return Proposal(category=category, examiner=present, judge=fits)
