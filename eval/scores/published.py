"""Published figures on these data sets, and the conditions for comparing with them.

It contains only figures that we could read in a publication, named in ``read_in``. They are shares, not percent. A
figure on another split, other classes or another version of the data can't be compared with ours: ``remark`` says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from eval.datasets.card import DatasetCard
from eval.datasets.protocol import Protocol


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One system's figures on one data set.

    Attributes:
        dataset: Dataset of :mod:`eval.datasets.known`.
        split: Split of the data set; empty if the publication does not say which.
        protocol: Protocol by which labels became two classes.
        year: Year of publication; None if a card doesn't name it.
        source: The paper, and the table if known.
        read_in: Publication in which we read the figure.
        accuracy: Accuracy, as a share; like the other figures None if it is not reported or could not be read.
        macro_f1: Macro-F1, as a share.
        auroc: AUROC, as a share.
        mmae: Macro-averaged mean absolute error, in levels.
        n: Number of memes that it was measured on; None if unknown.
    """

    dataset: str
    split: str
    protocol: Protocol
    system: str
    year: int | None
    source: str
    read_in: str
    accuracy: float | None = None
    macro_f1: float | None = None
    auroc: float | None = None
    mmae: float | None = None
    n: int | None = None
    remark: str = ""

    @property
    def name(self) -> str:
        """System and year, as reports name it."""
        return f"{self.system} ({self.year})" if self.year else self.system


_RGCL = "Mei et al. 2023 (RGCL), arXiv:2311.08110v1"
_RA_HMD = "Mei et al. 2025 (RA-HMD, at first LMM-RGCL), EMNLP, table 1"
_LOREHM = "Huang et al. 2024 (LoReHM), EMNLP, table 1"
_MIND = "Liu et al. 2025 (MIND), ACL"
_TOT = "Zhang et al. 2023, TOT: Topology-Aware Optimal Transport for Multimodal Hate Detection, table 2"
_UCA = "Yang et al. 2024, Uncertainty-Aware Cross-Modal Alignment for Hate Speech Detection"
_EXPLAIN_HM = "Lin et al. 2024 (ExplainHM), WWW"
_KIELA = "Kiela et al. 2020, The Hateful Memes Challenge"

_TEXT = "its text"
_LEADERBOARD = "the Papers with Code leaderboard, as hyper.ai keeps it"
_NOTES = "a public reading list, whose author checked it against the page"
_INDEX = "the index of results at wizwand.com"
_SUMMARIES = "public summaries of the paper"

_TRAINED = "Trained on the data set's own train split; the court is not."
_REPEATED = f"{_TRAINED} As this paper repeats or reproduces it."
_MERGED_UNSAID = "That somewhat harmful counts as harmful is not said where we read it."
_SPLIT_UNSAID = "The split is not said where we read it."
_VERSION_UNSAID = "Nor is the version of Harm-P; V0 holds duplicates, and figures on it are not those on V1."
_FIFTY = "Fifty labelled memes, and nothing trained; mean of five draws of the fifty."
_NO_LABELS = "No labels, and nothing trained."

_harm_c = partial(PublishedRow, "harm-c", "test", Protocol.MERGED)  # the only public test split
_harm_p = partial(PublishedRow, "harm-p", "test", Protocol.MERGED)
_fhm = partial(PublishedRow, "fhm", "", Protocol.PLAIN)
_fhm_seen = partial(PublishedRow, "fhm", "test_seen", Protocol.PLAIN)
_mami = partial(PublishedRow, "mami", "test", Protocol.PLAIN)

# The numbers of memes in RGCL's rows are those of its table 10: 354 for Harm-C; 1,000 for FHM, which is test_seen.
_RGCL_HARM_C = (
    _harm_c(
        system="CLIP",
        year=2023,
        source=f"{_RGCL}, table 2",
        read_in=_TEXT,
        accuracy=0.767,
        auroc=0.826,
        n=354,
        remark=_TRAINED,
    ),
    _harm_c(
        system="MOMENTA",
        year=2023,
        source=f"{_RGCL}, table 2",
        read_in=_TEXT,
        accuracy=0.805,
        auroc=0.863,
        n=354,
        remark=_REPEATED,
    ),
    _harm_c(
        system="PromptHate",
        year=2023,
        source=f"{_RGCL}, table 2",
        read_in=_TEXT,
        accuracy=0.845,
        auroc=0.909,
        n=354,
        remark=_REPEATED,
    ),
    _harm_c(
        system="HateCLIPper",
        year=2023,
        source=f"{_RGCL}, table 2",
        read_in=_TEXT,
        accuracy=0.848,
        auroc=0.897,
        n=354,
        remark=_REPEATED,
    ),
    _harm_c(
        system="RGCL",
        year=2023,
        source=f"{_RGCL}, table 2",
        read_in=_TEXT,
        accuracy=0.870,
        auroc=0.918,
        n=354,
        remark=_TRAINED,
    ),
)
_RGCL_FHM = (
    _fhm_seen(
        system="CLIP",
        year=2023,
        source=f"{_RGCL}, table 1",
        read_in=_TEXT,
        accuracy=0.720,
        auroc=0.798,
        n=1000,
        remark=_TRAINED,
    ),
    _fhm_seen(
        system="MOMENTA",
        year=2023,
        source=f"{_RGCL}, table 1",
        read_in=_TEXT,
        accuracy=0.613,
        auroc=0.692,
        n=1000,
        remark=_REPEATED,
    ),
    _fhm_seen(
        system="PromptHate",
        year=2023,
        source=f"{_RGCL}, table 1",
        read_in=_TEXT,
        accuracy=0.730,
        auroc=0.815,
        n=1000,
        remark=_REPEATED,
    ),
    _fhm_seen(
        system="HateCLIPper",
        year=2023,
        source=f"{_RGCL}, table 1",
        read_in=_TEXT,
        accuracy=0.760,
        auroc=0.855,
        n=1000,
        remark=_REPEATED,
    ),
    _fhm_seen("Flamingo-80B, fine-tuned", 2023, f"{_RGCL}, table 1", _TEXT, auroc=0.866, remark=_REPEATED),
    _fhm_seen(
        system="LLaVA-13B, fine-tuned",
        year=2023,
        source=f"{_RGCL}, table 1",
        read_in=_TEXT,
        accuracy=0.773,
        auroc=0.853,
        n=1000,
        remark=_TRAINED,
    ),
    _fhm_seen(
        system="LLaVA-13B, zero-shot",
        year=2023,
        source=f"{_RGCL}, table 3",
        read_in=_TEXT,
        accuracy=0.548,
        auroc=0.579,
        n=1000,
        remark="One model, no labels: what the ablation with the dull judge is.",
    ),
    _fhm_seen(
        system="RGCL",
        year=2023,
        source=f"{_RGCL}, table 1",
        read_in=_TEXT,
        accuracy=0.788,
        auroc=0.867,
        n=1000,
        remark=_TRAINED,
    ),
)

PUBLISHED: tuple[PublishedRow, ...] = (
    *_RGCL_HARM_C,
    _harm_c(
        system="DisMultiHate",
        year=2021,
        source="Disentangling Hate in Online Memes",
        read_in=_LEADERBOARD,
        accuracy=0.8124,
        auroc=0.8639,
        remark=f"{_TRAINED} {_MERGED_UNSAID}",
    ),
    _harm_c(
        system="ISSUES",
        year=2023,
        source="Mapping Memes to Words for Multimodal Hateful Meme Classification",
        read_in=_LEADERBOARD,
        accuracy=0.8164,
        auroc=0.9283,
        remark=f"{_TRAINED} {_MERGED_UNSAID}",
    ),
    _harm_c(
        system="TOT",
        year=2023,
        source=_TOT,
        read_in=_NOTES,
        accuracy=0.8701,
        macro_f1=0.8593,
        mmae=0.1634,
        remark=f"{_TRAINED} {_MERGED_UNSAID}",
    ),
    _harm_c(
        system="UCA",
        year=2024,
        source=_UCA,
        read_in=_NOTES,
        accuracy=0.8898,
        macro_f1=0.8831,
        mmae=0.1015,
        remark=f"{_TRAINED} {_MERGED_UNSAID}",
    ),
    _harm_c(
        system="RA-HMD (Qwen2-VL-7B)",
        year=2025,
        source=_RA_HMD,
        read_in=f"{_LEADERBOARD}, and {_NOTES}",
        accuracy=0.881,
        auroc=0.932,
        remark=f"{_TRAINED} {_MERGED_UNSAID}",
    ),
    _harm_c("LoReHM (LLaVA-34B)", 2024, _LOREHM, _SUMMARIES, macro_f1=0.7086, n=354, remark=_FIFTY),
    _harm_c("LoReHM (GPT-4o)", 2024, _LOREHM, _SUMMARIES, macro_f1=0.7298, n=354, remark=_FIFTY),
    _harm_c(
        system="MIND", year=2025, source=_MIND, read_in=_INDEX, accuracy=0.6893, remark=f"{_NO_LABELS} {_MERGED_UNSAID}"
    ),
    _harm_p(
        system="TOT",
        year=2023,
        source=_TOT,
        read_in=_NOTES,
        accuracy=0.9155,
        macro_f1=0.9129,
        mmae=0.1245,
        remark=f"{_TRAINED} {_MERGED_UNSAID} {_VERSION_UNSAID}",
    ),
    _harm_p(
        system="ExplainHM",
        year=2024,
        source=_EXPLAIN_HM,
        read_in=f"{_LEADERBOARD}, and {_INDEX}",
        accuracy=0.907,
        macro_f1=0.907,
        remark=f"{_TRAINED} {_MERGED_UNSAID} {_VERSION_UNSAID}",
    ),
    _harm_p(
        system="UCA",
        year=2024,
        source=_UCA,
        read_in=_NOTES,
        accuracy=0.9268,
        macro_f1=0.9266,
        mmae=0.0739,
        remark=f"{_TRAINED} {_MERGED_UNSAID} {_VERSION_UNSAID}",
    ),
    _harm_p(
        system="RA-HMD (Qwen2-VL-7B)",
        year=2025,
        source=_RA_HMD,
        read_in=f"{_LEADERBOARD}, and {_NOTES}",
        accuracy=0.916,
        macro_f1=0.911,
        remark=f"{_TRAINED} {_MERGED_UNSAID} {_VERSION_UNSAID}",
    ),
    _fhm(
        system="people",
        year=2020,
        source=_KIELA,
        read_in=f"its abstract, and {_LEADERBOARD}",
        accuracy=0.847,
        auroc=0.8265,
        remark=_SPLIT_UNSAID,
    ),
    _fhm(
        system="VisualBERT COCO",
        year=2020,
        source=_KIELA,
        read_in=_LEADERBOARD,
        accuracy=0.695,
        auroc=0.754,
        remark=f"{_TRAINED} {_SPLIT_UNSAID}",
    ),
    *_RGCL_FHM,
    _fhm(
        system="ExplainHM",
        year=2024,
        source=_EXPLAIN_HM,
        read_in=_INDEX,
        accuracy=0.756,
        remark=f"{_TRAINED} {_SPLIT_UNSAID}",
    ),
    _fhm(
        system="UCA",
        year=2024,
        source=_UCA,
        read_in=_NOTES,
        accuracy=0.7610,
        auroc=0.8432,
        remark=f"{_TRAINED} {_SPLIT_UNSAID}",
    ),
    _fhm(
        system="LoReHM (GPT-4o)",
        year=2024,
        source=_LOREHM,
        read_in=f"{_SUMMARIES}, and {_INDEX}",
        accuracy=0.702,
        macro_f1=0.7014,
        n=500,
        remark=f"{_FIFTY} {_SPLIT_UNSAID}",
    ),
    _fhm(
        system="MIND",
        year=2025,
        source=_MIND,
        read_in=_INDEX,
        accuracy=0.608,
        macro_f1=0.6071,
        remark=f"{_NO_LABELS} {_SPLIT_UNSAID}",
    ),
    _fhm(
        system="RA-HMD (Qwen2-VL-7B)",
        year=2025,
        source=_RA_HMD,
        read_in=f"{_LEADERBOARD}, and {_NOTES}",
        accuracy=0.821,
        auroc=0.911,
        remark=f"{_TRAINED} {_SPLIT_UNSAID}",
    ),
    _mami("UMUTeam", 2022, "UMUTeam at SemEval-2022 task 5", "its abstract", macro_f1=0.687, remark=_TRAINED),
    _mami("RubCSG", 2022, "RubCSG at SemEval-2022 task 5", "its abstract", macro_f1=0.755, remark=_TRAINED),
    _mami(
        system="LoReHM (GPT-4o)",
        year=2024,
        source=_LOREHM,
        read_in=f"{_SUMMARIES}, and {_INDEX}",
        accuracy=0.83,
        macro_f1=0.8298,
        n=1000,
        remark=_FIFTY,
    ),
    _mami(system="MIND", year=2025, source=_MIND, read_in=_INDEX, accuracy=0.689, remark=_NO_LABELS),
    _mami(
        system="RA-HMD (Qwen2-VL-7B)",
        year=2025,
        source=_RA_HMD,
        read_in=_NOTES,
        accuracy=0.799,
        auroc=0.904,
        remark=_TRAINED,
    ),
)
"""Sorted by data set, then by the system's input, then by year."""

_HARM = ("harm-c", "harm-p", "harm-p-v0")

CAVEATS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        _HARM,
        "The paper that the court follows leaves out what is somewhat harmful (protocol extreme). On the public test "
        "splits that leaves Harm-C 230 not harmful and 21 harmful, Harm-P V1 184 and 12: saying not harmful every time "
        "is right on 91.6 and 93.9 % of them.",
    ),
    (
        _HARM,
        "On those memes its accuracy and its macro-F1 can't both be had. It was measured on a balanced part of them "
        "that is not published; so its figures are not among the rows here.",
    ),
    (
        _HARM,
        "Nearly everyone else counts somewhat harmful as harmful (protocol merged): Harm-C 230 and 124, Harm-P V1 184 "
        "and 171. A figure under one protocol says nothing of one under the other.",
    ),
    (
        _HARM[1:],
        "Harm-P was corrected: V0 holds duplicates, V1 doesn't. Figures from before 2024 are on V0.",
    ),
    (
        ("fhm",),
        "FHM has several splits to measure on (dev_seen 500, test_seen 1,000, test_unseen 2,000 memes); a figure "
        "without its split has no place. Its captions mislead on purpose: 183 of the 1,000 of test_seen stand word for "
        "word in train, and only 44 of these with the same label.",
    ),
    (
        _HARM[:1],
        "Memes leak: of the 354 of Harm-C's test split 37 have a neighbour in train at a CLIP cosine of 0.95 or more, "
        "and 42 share their exact text with one. Here such precedents are left out and counted; a system that was "
        "trained on the whole train split has seen them.",
    ),
)
"""Caveats of comparing published figures with ours, with the data sets that they concern."""


_SHOWN = ("accuracy", "macro-f1", "auroc", "mmae")
"""Metrics that a row has a column for."""


def rows_of_card(card: DatasetCard, split: str, protocols: Sequence[Protocol]) -> tuple[PublishedRow, ...]:
    """Figures that a card quotes for the task that trials are scored on, on one split, under these protocols."""
    task = card.court_task
    # Without a task for trials there is no verdict to compare with.
    if task is None:
        return ()
    rows = []
    for protocol in protocols:
        for one in card.published_on(task.id, split, protocol):
            # Metrics without a column of their own go into the remark, so that nothing published is dropped.
            accuracy, macro_f1, auroc, mmae = (one.figures.get(name) for name in _SHOWN)
            others = [f"{name} {value:.3f}" for name, value in one.figures.items() if name not in _SHOWN]
            rows.append(
                PublishedRow(
                    dataset=card.id,
                    split=split,
                    protocol=protocol,
                    system=f"{one.system}, {one.setup}" if one.setup else one.system,
                    year=one.year,
                    source=one.source,
                    # The card's author read it; the card itself says where.
                    read_in="the data set's card",
                    accuracy=accuracy,
                    macro_f1=macro_f1,
                    auroc=auroc,
                    mmae=mmae,
                    n=one.n,
                    remark=" ".join([*(f"{words}." for words in others), one.remark]).strip(),
                )
            )
    return tuple(rows)


def with_numbers(row: PublishedRow, split: str, memes: Mapping[Protocol, Collection[int]]) -> PublishedRow:
    """The row, with a remark if it was measured on another number of memes than our figures on the same split.

    Args:
        memes: Numbers of memes that our figures were measured on, by protocol.
    """
    ours = set(memes.get(row.protocol, ()))
    # On another split the numbers differ in any case, and the row says which split it is.
    if row.split != split or row.n is None or not ours or ours == {row.n}:
        return row
    counted = " or ".join(f"{n:,}" for n in sorted(ours))
    return replace(row, remark=f"{row.remark} On {row.n:,} memes, and not on {counted} as here.".strip())


def caveats(dataset: str) -> tuple[str, ...]:
    """Returns the caveats of one data set, to be shown above its published rows."""
    return tuple(words for datasets, words in CAVEATS if dataset in datasets)


def published(dataset: str) -> tuple[PublishedRow, ...]:
    """The rows of one data set. Those of Harm-P are listed for either version, since none says which it used."""
    wanted = "harm-p" if dataset == "harm-p-v0" else dataset
    return tuple(row for row in PUBLISHED if row.dataset == wanted)
