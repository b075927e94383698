"""Helpers of tests of full trial."""

import asyncio

import pytest

from court.backends.pictures.reader import GuardedPictureReader
from court.events import Procedure
from court.meme import Frame, Meme
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from eval.synthetic.scenes import draw_meme
from tests.support.fakes import FakeFinder, FakeReader, H, N, findings
from tests.support.pictures import encode

BRIEF = TrialSettings(reply_chars=64, rounds_min=2, rounds_max=2)


class Finder(FakeFinder):
    """A finder of three precedents, each with a picture of a different size."""

    SCENES = ("crowd", "cat", "road")

    async def pictures(self, ids):
        drawn = [draw_meme(self.SCENES[n], f"text of {each}", size=(140 + 28 * n, 112)) for n, each in enumerate(ids)]
        return [Frame(encode(picture, "PNG"), *picture.size) for picture in drawn]


def court_of(model, settings=BRIEF, temperature=0.0, **options):
    role_model = RoleModel(model, temperature)
    return Court(
        finder=Finder(findings([H, N, H, H, N])),
        text_reader=FakeReader("read off the picture"),
        software="test",
        settings=settings,
        role_models=RoleModels(proposer=role_model, accuser=role_model, defender=role_model, judge=role_model),
        **options,
    )


def a_case(picture, text, **options):
    return TrialCase("t", Meme(picture, text=text), Procedure.FULL, **options)


def read(*drawn):
    """Reads pictures as the court does, in the guarded worker."""

    async def run():
        reader = GuardedPictureReader(workers=1)
        try:
            return [await reader.read(encode(picture, "PNG")) for picture in drawn]
        finally:
            await reader.aclose()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def picture():
    return read(draw_meme("coffee", "send them all home", size=(224, 168)))[0]
