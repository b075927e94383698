"""Export of the memes that a probed target failed to explain, as a data set for trials."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from court.digests import digest
from court.errors import BadRequest
from eval.datasets.card import SplitRole
from eval.datasets.card_draft import quoted
from eval.datasets.items import JudgedMeme
from eval.datasets.read import read_split
from eval.models.samples import Sample, Samples
from eval.probe.folder import SCORED, ProbeFolder, ProbeManifest, Scored
from eval.probe.report import THRESHOLD
from eval.session.directory import refuse_others, replace_lines
from retrieval.library.picture_finder import PICTURE_ENDINGS, picture_path

CARD, ROWS, TRAIN_ROWS, PICTURES = "exam.toml", "exam.jsonl", "train.jsonl", "pictures"
SPLIT, TRAIN = "exam", "train"
MISSING = "PICTURE_MISSING"


class CopiedMeme(BaseModel):
    """A meme of the data sets as an exam has it; one line of ``train.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Id as in the probe: if there are several data sets, it begins with the data set's id."""
    image: str
    text: str
    """Text from the data set, never a rewritten one; empty if the data set has none."""
    label: str
    dataset: str
    split: str
    source_label: str
    """Gold, in the data set's own words."""


class ExamMeme(CopiedMeme):
    """A meme that is examined; one line of ``exam.jsonl``."""

    score: int
    """Lowest score of the target's explanations of the meme."""
    categories: tuple[str, ...]
    """Categories in which the explanation failed."""


@dataclass(frozen=True, slots=True)
class Exam:
    """An exam that was written."""

    card: Path
    id: str
    memes: int
    harmful: int
    train: int
    """Number of memes that precedents can be made of."""
    without_picture: int


def export_exam(
    root: Path, samples: Samples, target: Path, *, threshold: int = THRESHOLD, with_train: bool = True
) -> Exam:
    """Writes the memes that the target failed on as they are: rows, pictures and a card.

    Raises:
        BadRequest: The probe has not come to its end, or no meme failed; the data are others than those that were
            probed; a picture is missing, or its name leads out of the data; or the folder holds something else.
        OSError: The disk will not have it.
    """
    refuse_others(target, "exam", ())
    folder = ProbeFolder(root)
    manifest = folder.manifest()
    if manifest.finished is None:
        raise BadRequest(
            f"The probe in {root} has not come to its end: an exam would lack memes. Call it again, then it goes on.",
            reason="RUN_UNFINISHED",
        )
    failed = _failed(folder.read(SCORED, Scored), threshold)
    if not failed:
        raise BadRequest(f"{manifest.target} failed on no meme: no score is {threshold} or less.", reason="EXAM_EMPTY")
    golds = _golds(samples, manifest)
    if lost := [id_ for id_ in failed if id_ not in golds]:
        raise BadRequest(
            f"{len(lost):,} memes of the probe are not in the data, such as {lost[0]!r}. Name the data sets that it "
            "was about, as it did: one with --data, several with [probe] in the file of models.",
            reason="DATA_MISSING",
        )
    # All pictures are located before any is copied, so that an exam is complete or not written at all.
    pictures = {id_: _picture(id_, golds[id_]) for id_ in failed}
    rows = [
        # Numbered: names that strangers gave may be of any form, and the same in two data sets.
        _exam_row(golds[id_], id_, scored, image=f"{number:05}{_ending(pictures[id_])}")
        for number, (id_, scored) in enumerate(failed.items(), 1)
    ]
    train, train_pictures, missing = _train(samples) if with_train else ([], {}, 0)
    (target / PICTURES / TRAIN).mkdir(parents=True)
    for row in rows:
        (target / PICTURES / row.image).write_bytes(pictures[row.id].read_bytes())
    for one in train:
        _link(train_pictures[one.id], target / PICTURES / one.image)
    for name, those in ((ROWS, rows), (TRAIN_ROWS, train)):
        if those:
            replace_lines(target / name, those)
    # Runs are stored by this id, so exams with different memes must not share one.
    content = digest([manifest.dataset, manifest.split, [row.id for row in rows]])
    id_ = f"exam-{re.sub(r'[^a-z0-9_.-]+', '-', manifest.target.lower())}-{content[-8:]}"
    # Last: without a card the folder is no data set, so that a crash leaves none by half.
    (target / CARD).write_text(
        _card(id_, manifest, samples, threshold=threshold, with_train=bool(train)), encoding="utf-8"
    )
    harmful = sum(row.label == "harmful" for row in rows)
    return Exam(target / CARD, id_, len(rows), harmful=harmful, train=len(train), without_picture=missing)


def _train(samples: Samples) -> tuple[list[CopiedMeme], dict[str, Path], int]:
    """The memes of the train splits, their pictures by id, and the number of those that have no picture there."""
    rows: dict[str, CopiedMeme] = {}
    pictures: dict[str, Path] = {}
    missing: set[str] = set()
    for one in samples.sets:
        for split in one.dataset.of_role(SplitRole.TRAIN):
            read = read_split(one.dataset, one.data, split.name)
            for meme in read.memes:
                id_ = _id_of(meme, one, mixed=samples.mixed)
                if id_ in rows:  # of an id that stands in two splits the first is taken, as a library takes it
                    continue
                try:
                    picture = _picture(id_, (meme, read.pictures, one))
                except BadRequest as error:
                    if error.reason != MISSING:
                        raise
                    missing.add(id_)
                    continue
                pictures[id_] = picture
                image = f"{TRAIN}/{len(rows) + 1:05}{_ending(picture)}"
                rows[id_] = _copied(id_, meme, one, split=split.name, image=image)
    return list(rows.values()), pictures, len(missing - set(rows))


def _link(picture: Path, link: Path) -> None:
    """Hard-links a picture, or copies it if that fails: a train split may have gigabytes."""
    try:
        os.link(picture.resolve(), link)
    except OSError:  # another disk, one without links, or a picture inside a tar file
        link.write_bytes(picture.read_bytes())


def _failed(scored: Iterable[Scored], threshold: int) -> dict[str, list[Scored]]:
    """Failed explanations by meme, in the order of the probe; of the memes as they are, not as they were rewritten."""
    found: dict[str, list[Scored]] = {}
    for one in scored:
        if one.scoring.score is not None and one.scoring.score <= threshold:
            found.setdefault(one.meme, []).append(one)
    return found


_Gold = tuple[JudgedMeme, Path | None, Sample]
"""A meme with its gold label, the folder of its pictures, and its data set."""


def _golds(samples: Samples, manifest: ProbeManifest) -> dict[str, _Gold]:
    golds: dict[str, _Gold] = {}
    for one in samples.sets:
        prefix = f"{one.dataset.id}/" if samples.mixed else ""
        read = read_split(one.dataset, one.data, one.split)
        # Gold labels of another version would be those of other memes under the same ids.
        if changed := [name for name, sha256 in read.files.items() if manifest.data.get(prefix + name) != sha256]:
            raise BadRequest(
                f"{', '.join(changed)} in {one.data} is not the file that was probed. Name the directory that the "
                "probe was about.",
                reason="DATA_DIFFERS",
            )
        golds |= {_id_of(meme, one, mixed=samples.mixed): (meme, read.pictures, one) for meme in read.memes}
    return golds


def _picture(id_: str, gold: _Gold) -> Path:
    meme, folder, sample = gold
    path = picture_path(folder, meme.image) if folder else None
    if folder and meme.image and path is None:
        raise BadRequest(
            f"The picture of {id_!r} leads out of {sample.data}, by its name or as a link: it is not copied.",
            reason="PICTURE_REFUSED",
        )
    if path is None or not path.is_file():
        raise BadRequest(
            f"The picture of {id_!r} is not below {sample.data}. Name the directory that the probe was about.",
            reason=MISSING,
        )
    return path


def _id_of(meme: JudgedMeme, sample: Sample, *, mixed: bool) -> str:
    """The meme's id as a probe has it."""
    return f"{sample.dataset.id}/{meme.id}" if mixed else meme.id


def _copied(id_: str, meme: JudgedMeme, sample: Sample, *, split: str, image: str) -> CopiedMeme:
    return CopiedMeme(
        id=id_,
        image=image,
        text=meme.text,
        label="harmful" if meme.harmful else "harmless",
        dataset=sample.dataset.id,
        split=split,
        source_label=meme.source_label,
    )


def _exam_row(gold: _Gold, id_: str, scored: Sequence[Scored], *, image: str) -> ExamMeme:
    meme, _, sample = gold
    return ExamMeme(
        **_copied(id_, meme, sample, split=sample.split, image=image).model_dump(),
        score=min(one.scoring.score for one in scored if one.scoring.score is not None),
        categories=tuple(one.category for one in scored),
    )


def _ending(picture: Path) -> str:
    ending = picture.suffix.lower()
    return ending if ending in PICTURE_ENDINGS else ""


def _card(id_: str, manifest: ProbeManifest, samples: Samples, *, threshold: int, with_train: bool) -> str:
    sets = {one.dataset.id: one.dataset for one in samples.sets}
    caveats = (
        f"memes of {manifest.dataset}, {manifest.split}, that {manifest.target} failed to explain (score {threshold} "
        "or less): chosen by that failure, so figures on them are none on the data set",
    )

    train = (
        f'[[splits]]\nname = {quoted(TRAIN)}\nrole = "train"\nfiles = [{quoted(TRAIN_ROWS)}]\n' if with_train else ""
    )

    def joined(values: Mapping[str, str]) -> str:
        return "; ".join(f"{name}: {value}" for name, value in values.items() if value)

    return f"""\
format = 1
id = {quoted(id_)}
title = {quoted(f"memes that {manifest.target} failed to explain")}
citation = {quoted(joined({name: one.citation for name, one in sets.items()}))}
licence = {quoted(joined({name: one.licence for name, one in sets.items()}))}
source_url = "memecourt-eval probe export-exam"
caveats = [{", ".join(map(quoted, caveats))}]

[layout]
kind = "jsonl"
pictures = [{quoted(PICTURES)}]

[[splits]]
name = {quoted(SPLIT)}
role = "test"
files = [{quoted(ROWS)}]

{train}
[fields]
id = "id"
picture = "image"
text = "text"

[[tasks]]
id = "harm"
title = "harmful or not, by the data sets' gold labels"
kind = "binary"
of = "label"
map = {{ harmful = "harmful", harmless = "harmless" }}
court = {{ harmful = ["harmful"], benign = ["harmless"] }}
"""
