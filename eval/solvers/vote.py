"""Embedded classifier for a question's labels: labelled memes vote on each label as precedents vote on harm.

Each label is a separate two-class problem: memes of the train split with the label against those without. So a label's
settings are chosen, its vote calibrated and its regression fitted by the same code as for a library of the court
(:mod:`retrieval.calibration.calibrate`), which leaves out near-duplicates and members of one group together. No model
server is needed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from court.errors import BadRequest
from court.precedents import LibraryIdentity
from court.summary import vote_of
from court.verdict import Label
from eval.datasets.items import JudgedMeme, TaskAnswer
from eval.solvers.calls import DecodedMeme
from eval.solvers.question import TEXTS, Question, gold_of, words_of
from retrieval.calibration.calibrate import FEWEST_OF_A_LABEL, calibrate
from retrieval.calibration.leave_one_out import group_numbers
from retrieval.calibration.thresholds import measure_min_similarity, measure_text_floors
from retrieval.embed.encoder import Encoder
from retrieval.index.exact import FusedIndex, SegmentedIndex
from retrieval.library.filters import Filter
from retrieval.library.library import Library
from retrieval.library.manifest import Counts, LabelledMeme, Tuning
from retrieval.precedents.finder import IndexedMemes
from retrieval.precedents.search import Query, SearchRequest, search_library

_BATCH = 256
"""Texts embedded at once."""


@dataclass(frozen=True)
class _LabelView(IndexedMemes):
    """Labelled memes as a library for one label: a :class:`retrieval.library.ports.LibraryView`.

    The court calls the positive class "harmful"; within this view, and only here, it means having the label.
    """

    library: Library
    index: SegmentedIndex
    """Index for all labels: vectors are shared, only the classes differ."""
    harmful: NDArray[np.bool_]
    memes: Sequence[LabelledMeme]
    rows: Mapping[str, int]
    tuning: Tuning
    counts: Counts

    @property
    def identity(self) -> LibraryIdentity:
        return self.library.identity

    def rows_of(self, ids: Collection[str]) -> list[int]:
        return [self.rows[id_] for id_ in ids if id_ in self.rows]

    def count(self, where: Filter) -> int:
        # No search here uses a filter; a wrong count would go unnoticed, so this raises.
        raise NotImplementedError("labels are searched without filters")

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        return [self.memes[row] for row in rows]


@dataclass(frozen=True, slots=True)
class LabelVotes:
    """Votes of labelled memes on each label of a question."""

    question: Question
    encoder: Encoder
    views: Mapping[str, _LabelView]
    notes: tuple[str, ...]

    async def answer(self, shown: DecodedMeme) -> TaskAnswer | None:
        """Returns the labels more likely than not; for a task with one label per meme, the most likely one.

        None if nothing of the meme can be compared.
        """
        # In a thread: searching for all labels is CPU-bound and would block the event loop.
        probabilities = await asyncio.to_thread(self._probabilities, shown)
        if probabilities is None:
            return None
        if self.question.multi:
            # Thresholds were chosen per label.
            labels = {label for label, p in probabilities.items() if p >= self.views[label].tuning.vote.threshold}
            return TaskAnswer(labels=self.question.in_order(labels), scores=probabilities)
        # Independent probabilities don't add up to 1; shares do.
        total = sum(probabilities.values())
        shares = {label: p / total for label, p in probabilities.items()}
        return TaskAnswer(labels=(max(shares, key=lambda label: shares[label]),), scores=shares)

    def _probabilities(self, shown: DecodedMeme) -> dict[str, float] | None:
        """Independent probability of each label."""
        frames = shown.frames if "picture" in self.question.inputs else ()
        text = _compared_text(shown.meme, self.question)
        # Embedded once for all labels.
        query = Query.embedded(self.encoder, text, frames, shown.pixels_sha256 if frames else "")
        found = {}
        for label, view in self.views.items():
            vote = vote_of(search_library(view, query, SearchRequest(exhibits=0, tally=0, alpha=None)))
            # The inputs are the same for every label: if nothing can be compared for one, that holds for all.
            if vote is None:
                return None
            found[label] = vote.probability
        return found


def open_label_votes(
    question: Question,
    library: Library,
    examples: Mapping[str, JudgedMeme],
    encoder: Encoder,
    progress: Callable[[str, int, int], None],
) -> LabelVotes:
    """Builds the classifier of a run. Raises BadRequest: No labelled meme has the inputs to be compared."""
    rows, memes = _compared(question, library, examples, encoder)
    text_dim = library.manifest.encoder.text_dim
    index = SegmentedIndex([FusedIndex(rows, text_dim)])
    groups = _groups(memes, examples)
    rows_by_id = {meme.id: row for row, meme in enumerate(memes)}
    views: dict[str, _LabelView] = {}
    for number, label in enumerate(question.labels):
        progress("labels", number, len(question.labels))
        having = [label in (gold_of(examples[meme.id], question.task) or ()) for meme in memes]
        # "Harmful" means having the label, as votes know only two classes.
        own = [
            meme.model_copy(update={"label": Label.HARMFUL if has else Label.NOT_HARMFUL})
            for meme, has in zip(memes, having, strict=True)
        ]
        views[label] = _LabelView(
            library=library,
            index=index,
            harmful=np.array(having, dtype=bool),
            memes=own,
            rows=rows_by_id,
            tuning=calibrate(
                rows,
                own,
                text_dim,
                measure_min_similarity(rows, own, text_dim, encoder.floors),
                text_floors=measure_text_floors(rows, own, text_dim, encoder.floors),
                safeguards=library.manifest.tuning.safeguards,
                groups=groups,
            ),
            counts=Counts.of(np.array([meme.flags for meme in own], dtype=np.uint8), 0),
        )
    progress("labels", len(question.labels), len(question.labels))
    notes = (
        ["Labels were calibrated with memes of one group of the card left out together."] if groups is not None else []
    )
    if few := [label for label, view in views.items() if not view.tuning.calibration.n]:
        notes.append(
            f"Nothing could be chosen or calibrated for {', '.join(few)}, which takes {FEWEST_OF_A_LABEL} memes with "
            "and without the label in the train split: the vote stands as the neighbours give it."
        )
    return LabelVotes(question, encoder, views, tuple(notes))


def _compared(
    question: Question, library: Library, examples: Mapping[str, JudgedMeme], encoder: Encoder
) -> tuple[NDArray[np.float32], list[LabelledMeme]]:
    """Vectors and memes of the library, reduced to the inputs that are compared: other words, or no picture."""
    text_dim = library.manifest.encoder.text_dim
    # A copy: rows are changed below, but the library's own are in use elsewhere.
    rows = np.array(library.rows, dtype=np.float32)
    if "picture" not in question.inputs:
        # A half of zeros is ignored in comparisons.
        rows[:, text_dim:] = 0
    # A library of precedents may contain memes without a label for the task: they get no vote.
    texts = [
        _compared_text(examples[meme.id], question) if meme.id in examples else meme.text for meme in library.memes
    ]
    for start in range(0, len(texts), _BATCH):
        part = texts[start : start + _BATCH]
        # Only texts that differ from the library's are embedded again, in whole batches.
        if part != [meme.text for meme in library.memes[start : start + _BATCH]]:
            rows[start : start + len(part), :text_dim] = encoder.embed_texts(part).vectors
    found, memes = [], []
    for row, (meme, text) in enumerate(zip(library.memes, texts, strict=True)):
        has_text, has_picture = bool(rows[row, :text_dim].any()), bool(rows[row, text_dim:].any())
        # A meme with neither half can't be compared with anything.
        if meme.id in examples and (has_text or has_picture):
            found.append(row)
            # The halves depend on these inputs, not on those with which the library was built.
            changes = {"text": text, "has_text": has_text, "has_picture": has_picture, "kept": None}
            memes.append(meme.model_copy(update=changes))
    if not memes:
        raise BadRequest(
            f"No labelled meme has anything of {', '.join(question.inputs)} that can be compared.",
            reason="NOTHING_TO_CITE",
            field="inputs",
        )
    return np.ascontiguousarray(rows[found]), memes


def _compared_text(meme: JudgedMeme, question: Question) -> str:
    return "\n".join(words for kind in TEXTS if kind in question.inputs and (words := words_of(meme, kind)).strip())


def _groups(memes: Sequence[LabelledMeme], examples: Mapping[str, JudgedMeme]) -> NDArray[np.int64] | None:
    """Group number of each meme by the card; None if groups are too few or too uneven to be left out."""
    names = [examples[meme.id].group for meme in memes]
    sizes = Counter(name for name in names if name)
    # With few or uneven groups, leaving one out would leave hardly any voters.
    if len(sizes) < 20 or max(sizes.values()) > 0.2 * len(memes):
        return None
    # A meme without a group forms a group by itself.
    return group_numbers(name or f"\0{row}" for row, name in enumerate(names))
