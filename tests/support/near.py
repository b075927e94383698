"""Helpers of tests of near."""

import hashlib
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from court.events import MemeIdentity, PolicyReference, Procedure, ReviewOutcome, TrialOpened, VerdictGiven, Versions
from court.meme import Frame, Picture, PictureFormat
from court.verdict import Label, Review, ReviewReason, Strength, Strengths, Verdict
from serving.docket.errors import TrialUnknown
from serving.docket.open import Docket
from serving.judging.known import reusable
from serving.judging.near_duplicates import NearDuplicateIndex
from serving.settings import Settings
from tests.support.drawn_memes import Caption, captioned_meme
from tests.support.pictures import encode

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
CAPTION = Caption("My aunt told me", "Blueland", "bring soup to the neighbours", "in spring")
TEXT = CAPTION.words()
AT = datetime(2026, 1, 2, tzinfo=UTC)
NAMESPACE = "blog"


def picture_of(*stills: Image.Image) -> Picture:
    """Returns a picture as the court's reader would: PNG frames, named by the digest of their pixels."""
    frames = tuple(
        Frame(encode(still, "PNG", compress_level=0), still.width, still.height, place)
        for place, still in enumerate(stills)
    )
    pixels = hashlib.sha256(b"".join(still.tobytes() for still in stills)).hexdigest()
    width, height = stills[0].size
    return Picture(PictureFormat.PNG, pixels, pixels, width, height, len(stills), frames)


def a_verdict(label: Label) -> Verdict:
    strengths = {
        H: Strengths(harmful=Strength.STRONG, benign=Strength.WEAK),
        N: Strengths(harmful=Strength.WEAK, benign=Strength.STRONG),
    }.get(label)
    review = (Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail="none"),) if label is U else ()
    return Verdict(label=label, strengths=strengths, rationale="because", review=review)


def opened(trial_id: str, picture: Picture, namespace: str) -> TrialOpened:
    return TrialOpened(
        trial_id=trial_id,
        seq=0,
        at=AT,
        procedure=Procedure.SUMMARY,
        meme=MemeIdentity(
            bytes_sha256=picture.bytes_sha256,
            pixels_sha256=picture.pixels_sha256,
            format=picture.format,
            width=picture.width,
            height=picture.height,
            frame_count=picture.frame_count,
            frames_used=tuple(frame.index for frame in picture.frames),
            namespace=namespace,
        ),
        policy=PolicyReference(id="p", version="1", digest="sha256:0"),
        settings={},
        versions=Versions(software="test", settings="sha256:0"),
    )


class Server:
    """A docket with its near-duplicate index, as in one server."""

    def __init__(self, docket: Docket, index: NearDuplicateIndex) -> None:
        self.docket = docket
        self.index = index

    async def record_trial(
        self,
        trial_id: str,
        picture: Picture,
        text: str = TEXT,
        label: Label | None = H,
        *,
        read: bool = False,
        namespace: str = NAMESPACE,
    ) -> None:
        """Records a trial as the trial runner would; without a label, it stays open."""
        await self.docket.writer.keep_picture(picture)
        await self.docket.writer.append(opened(trial_id, picture, namespace))
        await self.index.learn(trial_id, picture, text=text, text_read=read, namespace=namespace)
        if label is not None:
            await self.docket.writer.append(VerdictGiven(trial_id=trial_id, seq=1, at=AT, verdict=a_verdict(label)))

    async def overrule(self, trial_id: str, label: Label) -> None:
        await self.docket.reviews.review(
            trial_id, outcome=ReviewOutcome.OVERRULED, label=label, reason="seen", clause="", reviewer="ada", at=AT
        )

    async def find(self, picture: Picture, text: str = TEXT, *, read: bool = False, namespace: str = NAMESPACE):
        return await self.index.find(picture, text, read, namespace)

    async def ids(self, *meme: Any, **options: Any) -> list[str]:
        return [each.trial_id for each in await self.find(*meme, **options)]

    async def reusable_trial(
        self, picture: Picture, text: str = TEXT, *, read: bool = False, namespace=NAMESPACE, usable=None
    ):
        async def both(trial_id: str) -> bool:
            return await self.is_reusable(trial_id) and (usable is None or await usable(trial_id))

        return await self.index.same(picture, text, read, namespace, usable=both)

    async def is_reusable(self, trial_id: str) -> bool:
        try:
            return reusable(await self.docket.trials.record(trial_id))
        except TrialUnknown:
            return False


@asynccontextmanager
async def a_server(place: Path, *, reuse="namespace", reuse_near=False, **options):
    docket = Docket.open(place)
    index = NearDuplicateIndex(
        fingerprints=docket.fingerprints,
        trials=docket.trials,
        index=docket.index,
        settings=Settings(reuse=reuse, reuse_near=reuse_near),
        **options,
    )
    try:
        yield Server(docket, index)
    finally:
        await index.close()
        await docket.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "docket.sqlite"


@pytest.fixture(scope="module")
def still() -> Image.Image:
    return captioned_meme("chelsea.png", CAPTION)


@pytest.fixture(scope="module")
def meme(still: Image.Image) -> Picture:
    return picture_of(still)
