"""Runs on disk for tests of the report: records of scripted trials on drawn memes about invented groups."""

import asyncio
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from court.events import Procedure
from court.meme import Frame, Meme, Picture, PictureFormat
from court.record import TrialAborted
from court.trial import TrialCase
from eval.datasets.items import Cost, JudgedMeme, Level, Prediction, Protocol
from eval.datasets.known import find_card
from eval.runs.results import DOCKET, EXCLUDED, LIBRARY, MEMES, PREDICTIONS, Excluded, RunFolder, RunManifest
from eval.solvers.trial import prediction_of
from eval.synthetic.scenes import draw_meme
from retrieval.library.library import Library
from retrieval.library.thumbnails import ThumbnailWriter
from serving.docket.open import Docket
from tests.support.cast import ACQUITTAL, RULING, Cast, full_court
from tests.support.fakes import H, N, findings
from tests.support.library import ENCODER, TUNING, content

MARKUP = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>&amp; \"quoted\" \u202eback\u202c"
"""Markup that a stranger may put on a meme, and a model may repeat."""

BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class ReportedMeme:
    """A meme and the outcome of its trial.

    Attributes:
        says: ``harmful``, ``harmless``, ``undecided``, ``failed``, or empty if not judged yet.
        score: Probability of harm from the Judge's model; None for a server without probabilities.
        rounds: Rounds of questions, the same for both sides.
    """

    id: str
    level: Level
    says: str
    text: str = "People from Blueland\nare late again"
    scene: str = "crowd"
    score: float | None = 0.8
    rounds: int = 3
    rationale: str = ""
    animated: bool = False


NOT, SOME, VERY = Level

USUAL_MEMES = (
    ReportedMeme("m1", NOT, "harmless", "Monday morning\nwithout coffee", "cat", 0.1, 2),
    ReportedMeme("m2", NOT, "harmless", "When the alarm rings\non a Monday", "cat", 0.2, 2),
    ReportedMeme("m3", NOT, "harmful", "People from Blueland\nlove their soup", "crowd", 0.7, 4),
    ReportedMeme("m4", SOME, "harmful", "Blueland again\nwhat a surprise", "football", 0.6, 4),
    ReportedMeme("m5", VERY, "harmful", "Kick them out\nof our town", "crowd", 0.9, 5),
    ReportedMeme("m6", VERY, "harmless", "Nobody wants people\nfrom Blueland here", "road", 0.3, 3),
    ReportedMeme("m7", SOME, "undecided", "Section 14b\nturbine blades", "landscape", None, 0),
    ReportedMeme("m8", NOT, "failed", "A quiet evening\nat the lake", "landscape", None, 0),
)
"""Memes with two right verdicts of each class, and one of each wrong or missing outcome."""


def write_report_run(
    root: Path,
    reported: Sequence[ReportedMeme] = USUAL_MEMES,
    *,
    name: str = "full court",
    finished: bool = True,
    library: bool = False,
    protocols: tuple[Protocol, ...] = (Protocol.MERGED, Protocol.EXTREME),
    dataset: str = "harm-c",
    docket: bool = True,
    **changes: object,
) -> Path:
    """Runs every trial and writes the run."""
    folder = RunFolder(root)
    memes = [
        JudgedMeme(
            id=one.id,
            split="test",
            line=line,
            image=f"{line}.png",
            text=one.text,
            harmful=one.level is not NOT if Protocol.PLAIN not in protocols else one.level is VERY,
            level=None if Protocol.PLAIN in protocols else one.level,
            source_label=one.level.name.replace("_", " ").lower(),
            targets=("community",) if one.level is not NOT else (),
        )
        for line, one in enumerate(reported, 1)
    ]
    folder.write(MEMES, memes)
    folder.write(
        EXCLUDED,
        [Excluded(precedent="t17", meme=memes[0].id, why="same text", text_similarity=1.0, picture_similarity=0.41)],
    )
    folder.write_manifest(
        RunManifest.model_validate(
            {
                "name": name,
                "created": BEGUN,
                "finished": BEGUN if finished else None,
                "dataset": dataset,
                "card": find_card(dataset).to_json() if dataset == "harm-c" else {},
                "split": "test",
                "data": {"test.jsonl": "d" * 64},
                "protocols": protocols,
                "procedure": Procedure.FULL,
                "settings": {"rounds_max": 10, "epsilon": 0.02},
                "settings_digest": "sha256:" + "5" * 64,
                "models": {"JUDGE": "judge-model"},
                "prompts": "sha256:" + "6" * 64,
                "policy": "sha256:" + "7" * 64,
                "library": "sha256:" + "8" * 64,
                "library_size": 100,
                "encoder": "test encoder",
                "excluded": {"same text": 1},
                "software": "0.1.0",
                "commit": "abc123",
                "python": "3.11",
                "machine": "Linux, x86_64, 2 cores",
                "command": "memecourt-eval run --dataset harm-c --data harm --procedure full",
                **changes,
            }
        )
    )
    if library:
        _library(root / LIBRARY)
    folder.write(PREDICTIONS, asyncio.run(_try_all(root, memes, reported)))
    if not docket:
        (root / DOCKET).unlink()
    return root


async def _try_all(root: Path, memes: Sequence[JudgedMeme], outcomes: Sequence[ReportedMeme]) -> list[Prediction]:
    docket = Docket.open(root / DOCKET)
    try:
        predictions = []
        for meme, one in zip(memes, outcomes, strict=True):
            if one.says:
                predictions.append(await _try(docket, meme, one))
        return predictions
    finally:
        await docket.close()


async def _try(docket: Docket, meme: JudgedMeme, one: ReportedMeme) -> Prediction:
    ruling = dict(RULING if one.says == "harmful" else ACQUITTAL)
    ruling["rationale"] = one.rationale or f"The words of {one.id} were weighed."
    if one.says == "failed":
        ruling = "no ruling at all"
    has_precedents = one.says != "undecided"
    cast = Cast(rounds=max(one.rounds, 2), odds=None if one.score is None else (one.score, 1 - one.score), judge=ruling)
    court = full_court(cast, found=findings([H, N, H, H, N] if has_precedents else []))
    picture = _picture(one)
    await docket.writer.keep_picture(picture)
    procedure = Procedure.FULL if has_precedents else Procedure.SUMMARY
    case = TrialCase(f"trial-{hashlib.sha256(meme.id.encode()).hexdigest()[:8]}", Meme(picture, meme.text), procedure)
    try:
        record = await court.run(case, docket.writer.append)
    except TrialAborted as error:
        record = error.record
    # A fixed cost, as the real one depends on the wording of prompts, which a report should not.
    calls = 0 if procedure is Procedure.SUMMARY else 2 + 6 * one.rounds
    cost = Cost(calls=calls, stored=calls // 2, tokens_in=500 * calls, tokens_out=40 * calls, seconds=1.5)
    return prediction_of(meme, record).model_copy(update={"cost": cost})


def _picture(one: ReportedMeme) -> Picture:
    frames = []
    for index in range(2 if one.animated else 1):
        out = io.BytesIO()
        # Texts that can't be drawn are replaced on the picture; the record has the judged text.
        draw_meme(one.scene, one.text if one.text.isascii() and "<" not in one.text else "words", seed=index).save(
            out, "PNG"
        )
        frames.append(Frame(out.getvalue(), 640, 480, index))
    digest = hashlib.sha256(b"".join(frame.png for frame in frames)).hexdigest()
    return Picture(
        format=PictureFormat.PNG,
        bytes_sha256=digest,
        pixels_sha256=digest,
        width=640,
        height=480,
        frame_count=len(frames),
        frames=tuple(frames),
    )


def _library(root: Path) -> None:
    """Creates a library of the precedents that the scripted finder cites, each with a picture."""
    writer = ThumbnailWriter(root.parent)
    ids = [f"p{number}" for number in range(5)]
    thumbnails = {}
    for number, id_ in enumerate(ids):
        out = io.BytesIO()
        draw_meme("coffee", f"precedent {id_}", size=(320, 240), seed=number).save(out, "JPEG")
        thumbnails[id_] = writer.append(out.getvalue())
    memes, rows = content(*ids, kept=thumbnails)
    Library.create(root, name="n", encoder=ENCODER.identity, memes=memes, rows=rows, tuning=TUNING, pictures=writer)
