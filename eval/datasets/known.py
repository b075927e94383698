"""The field's data sets: how their authors lay them out, how many memes each split has, and where they are had from.

None of them may be handed on, and none is downloaded by us. What a figure rests on stands beside it: a figure that
could be read nowhere is absent, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from eval.datasets.protocol import Protocol
from retrieval.library.sources import SourceFormat


class SplitRole(StrEnum):
    """Purpose of a split. Settings are never chosen on one that is for testing."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Split:
    """One split as its authors released it.

    Attributes:
        name: Ours: the name of the first file without its ending.
        role: Purpose of the split.
        files: Names its file may have, the authors' own first.
        memes: Rows of the released file; None where that is not known.
        classes: Rows per label, in the data set's own words; empty where that is not known.
        labels: Names that the file of its labels may have, where they stand apart.
        remark: Remark on the split.
    """

    name: str
    role: SplitRole
    files: tuple[str, ...]
    memes: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A data set.

    Attributes:
        id: Id of the data set in commands and runs.
        title: Title of the data set.
        protocols: Under which its labels become two classes, the usual one first.
        splits: Splits by name.
        format: Format of its files.
        labels: Its labels, in its own words.
        own_folders: Folders, below the directory that is given, that are surely this data set's.
        folders: Others that its files may be in; ``""`` is the directory itself.
        pictures: Folders that picture names may be relative to.
        sibling: Id of another version with the same file names, told apart by the number of rows.
        source_url: Address at which its authors publish it.
        citation: Citation of the data set.
        licence: On what terms.
        verified: Origin of the figures that the splits were checked against.
    """

    id: str
    title: str
    protocols: tuple[Protocol, ...]
    splits: Mapping[str, Split]
    format: SourceFormat
    labels: tuple[str, ...]
    pictures: tuple[str, ...]
    source_url: str
    citation: str
    licence: str
    verified: str
    own_folders: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("", "annotations", "Annotations")
    sibling: str = ""

    def of_role(self, role: SplitRole) -> tuple[Split, ...]:
        """The splits that are for this, in order; a data set may have several to test on."""
        return tuple(split for split in self.splits.values() if split.role is role)


HARMEME_LABELS = ("not harmful", "somewhat harmful", "very harmful")
_HARMEME = {
    "protocols": (Protocol.MERGED, Protocol.EXTREME),
    "format": SourceFormat.HARMEME,
    "labels": HARMEME_LABELS,
    "source_url": "https://github.com/LCS2-IIITD/MOMENTA",
    "licence": "annotations: MIT; pictures: from the authors, on their terms",
}
_HARMEME_PICTURES = ("images", "img", "Images")
_MOMENTA = "Pramanick et al., MOMENTA, Findings of EMNLP 2021"


def _levels(benign: int, somewhat: int, very: int) -> dict[str, int]:
    return dict(zip(HARMEME_LABELS, (benign, somewhat, very), strict=True))


def _splits(*splits: Split) -> Mapping[str, Split]:
    return {split.name: split for split in splits}


def _folders_of(name: str, *releases: str) -> tuple[str, ...]:
    """Lists the folders of a part of HarMeme: the authors' repository, alone, or with its annotations in a folder."""
    inside = (f"{name}/annotations", f"{name}/Annotations", f"{name}/defaults/annotations")
    return (name, *(f"{release}/Annotations/{name}" for release in releases), f"Annotations/{name}", *inside)


_HARM_C = Dataset(
    id="harm-c",
    title="HarMeme, Harm-C (COVID-19)",
    splits=_splits(
        Split(name="train", role=SplitRole.TRAIN, files=("train.jsonl",), memes=3013, classes=_levels(1949, 882, 182)),
        Split(name="val", role=SplitRole.VALIDATION, files=("val.jsonl",), memes=177, classes=_levels(116, 51, 10)),
        Split(name="test", role=SplitRole.TEST, files=("test.jsonl",), memes=354, classes=_levels(230, 103, 21)),
    ),
    own_folders=_folders_of("Harm-C", "HarMeme_V1", "HarMeme_V0"),
    pictures=_HARMEME_PICTURES,
    citation=f"Pramanick et al., Findings of ACL 2021; {_MOMENTA}",
    verified="counted in the authors' released files (HarMeme_V1; the same in V0)",
    **_HARMEME,  # type: ignore[arg-type]
)
_HARM_P = Dataset(
    id="harm-p",
    title="HarMeme, Harm-P (US politics), V1 without duplicates",
    splits=_splits(
        Split(
            name="train",
            role=SplitRole.TRAIN,
            files=("train_v1.jsonl", "train.jsonl"),
            memes=2938,
            classes=_levels(1450, 1365, 122),
            remark="one released row has an empty label; the authors' table counts it among 123 very harmful",
        ),
        Split(
            name="val",
            role=SplitRole.VALIDATION,
            files=("val_v1.jsonl", "val.jsonl"),
            memes=177,
            classes=_levels(88, 81, 8),
        ),
        Split(
            name="test",
            role=SplitRole.TEST,
            files=("test_v1.jsonl", "test.jsonl"),
            memes=355,
            classes=_levels(184, 159, 12),
        ),
    ),
    own_folders=_folders_of("Harm-P", "HarMeme_V1"),
    pictures=_HARMEME_PICTURES,
    citation=_MOMENTA,
    verified="counted in the authors' released files (HarMeme_V1)",
    sibling="harm-p-v0",
    **_HARMEME,  # type: ignore[arg-type]
)
_HARM_P_V0 = Dataset(
    id="harm-p-v0",
    title="HarMeme, Harm-P (US politics), V0 with duplicates: figures before 2024",
    splits=_splits(
        Split(
            "train",
            SplitRole.TRAIN,
            ("train.jsonl",),
            3020,
            remark="files and paper disagree: 1,370 somewhat and 116 very harmful in the files, 1,270 and 216 in the "
            "paper, as reported to the authors (their issue 5)",
        ),
        Split("val", SplitRole.VALIDATION, ("val.jsonl",), 177),
        Split("test", SplitRole.TEST, ("test.jsonl",), 355),
    ),
    own_folders=_folders_of("Harm-P", "HarMeme_V0"),
    pictures=_HARMEME_PICTURES,
    citation=_MOMENTA,
    verified="row counts from reports about the authors' files (their issues 3 and 5); class counts not verified",
    sibling="harm-p",
    **_HARMEME,  # type: ignore[arg-type]
)
_FHM = Dataset(
    id="fhm",
    title="Hateful Memes (FHM)",
    protocols=(Protocol.PLAIN,),
    splits=_splits(
        Split("train", SplitRole.TRAIN, ("train.jsonl",), 8500),
        Split("dev_seen", SplitRole.VALIDATION, ("dev_seen.jsonl", "dev.jsonl"), 500),
        Split("test_seen", SplitRole.TEST, ("test_seen.jsonl", "test.jsonl"), 1000),
        Split("dev_unseen", SplitRole.VALIDATION, ("dev_unseen.jsonl",), 540, remark="shares memes with dev_seen"),
        Split("test_unseen", SplitRole.TEST, ("test_unseen.jsonl",), 2000),
    ),
    format=SourceFormat.FHM,
    labels=("0", "1"),
    own_folders=("hateful_memes", "hateful_memes/defaults/annotations"),
    folders=("", "data", "annotations", "defaults/annotations"),
    pictures=("", "data", "images", "defaults/images"),
    source_url="https://hatefulmemeschallenge.com",
    citation="Kiela et al., The Hateful Memes Challenge, NeurIPS 2020",
    licence="the authors' Hateful Memes licence: research, no redistribution",
    verified="row counts in several public descriptions of the release; class counts not verified",
)
_MAMI = Dataset(
    id="mami",
    title="MAMI, SemEval-2022 task 5, subtask A (misogynous or not)",
    protocols=(Protocol.PLAIN,),
    splits=_splits(
        Split("train", SplitRole.TRAIN, ("training.csv", "training.tsv", "train.csv", "train.tsv"), 10_000),
        Split("test", SplitRole.TEST, ("Test.csv", "test.csv", "test.tsv"), 1000, labels=("test_labels.txt",)),
    ),
    format=SourceFormat.MAMI,
    labels=("not misogynous", "misogynous"),
    own_folders=("MAMI", "MAMI/TRAINING", "MAMI/training", "MAMI/test"),
    folders=("", "TRAINING", "training", "test", "TEST"),
    pictures=("", "TRAINING", "training", "test", "TEST", "images"),
    source_url="https://github.com/MIND-Lab/SemEval2022-Task-5-Multimedia-Automatic-Misogyny-Identification-MAMI-",
    citation="Fersini et al., SemEval-2022 Task 5: Multimedia Automatic Misogyny Identification",
    licence="from the authors on request, for academic purposes",
    verified="row counts in the authors' README; class counts not verified",
)
_OURS = {
    "source_url": "memecourt-eval synthetic",
    "citation": "none: drawn by this program",
    "licence": "as this program",
    "verified": "as many as were asked for",
}
SYNTHETIC_KEY = "synthetic.json"
"""Stands beside synthetic data and says how they were made."""
FUNCTIONAL_KEY = "functional.jsonl"
"""Stands beside functional tests: the functionality of each meme, and the contrast set that it is of; a line a meme."""
_SYNTHETIC_HARMEME = Dataset(
    id="synthetic-harmeme",
    title="synthetic memes in HarMeme's layout",
    protocols=_HARM_C.protocols,
    splits=_splits(
        Split("train", SplitRole.TRAIN, ("train.jsonl",)),
        Split("val", SplitRole.VALIDATION, ("val.jsonl",)),
        Split("test", SplitRole.TEST, ("test.jsonl",)),
    ),
    format=SourceFormat.HARMEME,
    labels=HARMEME_LABELS,
    folders=("",),
    pictures=("images",),
    **_OURS,  # type: ignore[arg-type]
)
_SYNTHETIC_FHM = Dataset(
    id="synthetic-fhm",
    title="synthetic memes in the layout of FHM",
    protocols=_FHM.protocols,
    splits=_splits(
        Split("train", SplitRole.TRAIN, ("train.jsonl",)),
        Split("dev_seen", SplitRole.VALIDATION, ("dev_seen.jsonl",)),
        Split("test_seen", SplitRole.TEST, ("test_seen.jsonl",)),
    ),
    format=SourceFormat.FHM,
    labels=_FHM.labels,
    folders=("",),
    pictures=("",),
    **_OURS,  # type: ignore[arg-type]
)

_SYNTHETIC_FUNCTIONAL = Dataset(
    id="synthetic-functional",
    title="functional tests of drawn memes",
    protocols=_FHM.protocols,
    splits=_splits(
        Split("train", SplitRole.TRAIN, ("train.jsonl",)),
        Split("test", SplitRole.TEST, ("test.jsonl",)),
    ),
    format=SourceFormat.FHM,
    labels=_FHM.labels,
    folders=("",),
    pictures=("",),
    **{**_OURS, "source_url": "memecourt-eval functional make"},  # type: ignore[arg-type]
)

DATASETS: Mapping[str, Dataset] = {
    dataset.id: dataset
    for dataset in (
        _HARM_C,
        _HARM_P,
        _HARM_P_V0,
        _FHM,
        _MAMI,
        _SYNTHETIC_HARMEME,
        _SYNTHETIC_FHM,
        _SYNTHETIC_FUNCTIONAL,
    )
}
"""All that are known, by id."""
