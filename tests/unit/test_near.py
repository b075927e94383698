"""Looks of memes in the docket: who finds whose, what counts as the same, and what it costs to hold them."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from court.errors import Unavailable
from court.events import MemeIdentity, PolicyReference, Procedure, ReviewOutcome, TrialOpened, VerdictGiven, Versions
from court.meme import Frame, Picture, PictureFormat, text_digest
from court.verdict import Label, Review, ReviewReason, Strength, Strengths, Verdict
from retrieval.near_duplicates.match import MatchThresholds, MemeText
from serving.docket.open import Docket
from serving.runner.near_duplicates import NearDuplicateIndex, StoredFingerprint
from serving.settings import Settings
from tests.support.drawn_memes import BASES, CAPTIONS, COPIES, Caption, drawn
from tests.support.pictures import encode
from tests.support.playing import play_in
from tests.support.sizes import FULL

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
CAPTION = Caption("My aunt told me", "Blueland", "bring soup to the neighbours", "in spring")
TEXT = CAPTION.words()
AT = datetime(2026, 1, 2, tzinfo=UTC)
NAMESPACE = "blog"


def picture_of(*stills: Image.Image) -> Picture:
    """As the court has it: frames of PNG, named by what is on them."""
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
    """A docket and what is near in it, as one server has them."""

    def __init__(self, docket: Docket, near: NearDuplicateIndex) -> None:
        self.docket = docket
        self.near = near

    async def tried(
        self,
        trial_id: str,
        picture: Picture,
        text: str = TEXT,
        label: Label | None = H,
        *,
        read: bool = False,
        namespace: str = NAMESPACE,
    ) -> None:
        """A trial as a courthouse keeps it; without a label it is open yet."""
        await self.docket.writer.keep_picture(picture)
        await self.docket.writer.append(opened(trial_id, picture, namespace))
        await self.near.learn(trial_id, picture, text=text, text_read=read, namespace=namespace)
        if label is not None:
            await self.docket.writer.append(VerdictGiven(trial_id=trial_id, seq=1, at=AT, verdict=a_verdict(label)))

    async def overrule(self, trial_id: str, label: Label) -> None:
        await self.docket.reviews.review(
            trial_id, outcome=ReviewOutcome.OVERRULED, label=label, reason="seen", clause="", reviewer="ada", at=AT
        )

    async def cited(self, picture: Picture, text: str = TEXT, *, read: bool = False, namespace: str = NAMESPACE):
        return await self.near.find(picture, text, read, namespace)

    async def ids(self, *asked: Any, **options: Any) -> list[str]:
        return [each.trial_id for each in await self.cited(*asked, **options)]

    async def same(self, picture: Picture, text: str = TEXT, *, read: bool = False, namespace=NAMESPACE, **options):
        return await self.near.same(picture, text, read, namespace, **options)


@asynccontextmanager
async def a_server(place: Path, *, reuse="namespace", reuse_near=False, **options):
    docket = Docket.open(place)
    near = NearDuplicateIndex(
        fingerprints=docket.fingerprints,
        trials=docket.trials,
        index=docket.index,
        settings=Settings(reuse=reuse, reuse_near=reuse_near),
        **options,
    )
    try:
        yield Server(docket, near)
    finally:
        await near.close()
        await docket.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "docket.sqlite"


@pytest.fixture
def on(place: Path) -> Callable[..., Any]:
    """Plays a scene with a server of its own."""

    def play(scene: Callable[[Server], Coroutine[Any, Any, Any]], **options: Any) -> Any:
        return play_in(a_server(place, **options), scene)

    return play


@pytest.fixture(scope="module")
def still() -> Image.Image:
    return drawn("chelsea.png", CAPTION)


@pytest.fixture(scope="module")
def meme(still: Image.Image) -> Picture:
    return picture_of(still)


@pytest.fixture(scope="module")
def copy(still: Image.Image) -> Picture:
    return picture_of(COPIES["JPEG, quality 40"](still))


@pytest.fixture(scope="module")
def other() -> Picture:
    return picture_of(drawn("rocket.jpg", CAPTION))


def with_a_disc(still: Image.Image) -> Image.Image:
    changed = still.copy()
    ImageDraw.Draw(changed).ellipse((300, 200, 340, 240), fill="red", outline="white", width=2)
    return changed


# What is cited


def test_a_copy_is_cited_with_its_distance_and_what_its_trial_came_to(on, meme, copy, other):
    async def scene(server):
        await server.tried("first", meme, label=H)
        (found,) = await server.cited(copy)
        assert (found.trial_id, found.label, found.same_text, found.same_picture) == ("first", H, True, True)
        assert 0 < found.distance <= 31
        (other_text,) = await server.cited(copy, "something else")
        assert (other_text.distance, other_text.same_text, other_text.same_picture) == (found.distance, False, False)
        (itself,) = await server.cited(meme)
        assert (itself.distance, itself.same_text, itself.same_picture) == (0, True, True)
        assert await server.cited(other) == []

    on(scene)


def test_a_tile_that_differs_is_told(on, still, meme):
    async def scene(server):
        await server.tried("first", meme)
        (found,) = await server.cited(picture_of(with_a_disc(still)))
        assert (found.same_text, found.same_picture) == (True, False)

    on(scene)


def test_trials_without_a_verdict_have_nothing_to_say(on, meme, copy):
    async def scene(server):
        await server.tried("open", meme, label=None)
        await server.near.learn("of no trial", meme, text=TEXT, text_read=False, namespace=NAMESPACE)
        assert await server.cited(copy) == []
        await server.docket.writer.append(VerdictGiven(trial_id="open", seq=1, at=AT, verdict=a_verdict(N)))
        assert await server.ids(copy) == ["open"]

    on(scene)


def test_a_trial_that_was_overruled_counts_with_the_reviewers_label(on, meme, copy):
    async def scene(server):
        await server.tried("first", meme, label=N)
        assert [each.label for each in await server.cited(copy)] == [N]
        await server.overrule("first", H)
        assert [each.label for each in await server.cited(copy)] == [H]
        await server.tried("undecided", meme, label=U)
        assert {each.label for each in await server.cited(copy)} == {H, U}

    on(scene)


def test_nobody_hides_a_harmful_one_behind_others(on, still, meme, copy):
    async def scene(server):
        await server.tried("harmful", meme, "what was said before", label=H)
        for number in range(12):
            await server.tried(f"benign {number}", copy, label=N)
        found = await server.cited(copy)
        assert [each.label for each in found].count(H) == 1
        assert [each.label for each in found].count(N) == 5
        assert [each.distance for each in found] == sorted(each.distance for each in found)
        assert {each.trial_id for each in found if each.label is N} == {f"benign {n}" for n in range(7, 12)}

    on(scene)


def test_the_same_text_is_found_among_more_captions_than_are_compared(on, meme, copy, monkeypatch):
    monkeypatch.setattr("serving.runner.near_duplicates._WEIGHED", 3)

    async def scene(server):
        await server.tried("wanted", meme, "Bring  SOUP", label=H)
        for number in range(9):
            await server.tried(f"other {number}", copy, f"caption of the number {number}", label=H)
        assert "wanted" in await server.ids(copy, "bring soup")
        assert "wanted" not in await server.ids(copy, "bring soap")

    on(scene)


# Whose


def test_other_namespaces_are_not_seen_unless_reuse_is_everywhere(on, meme, copy):
    async def first(server):
        await server.tried("mine", meme)
        await server.tried("theirs", meme, namespace="shop")

    async def ids(server):
        return sorted(await server.ids(copy)), sorted(await server.ids(copy, namespace="shop"))

    on(first)
    assert on(ids) == on(ids, reuse="off") == (["mine"], ["theirs"])
    assert on(ids, reuse="everywhere") == (["mine", "theirs"], ["mine", "theirs"])
    assert on(lambda server: server.ids(copy, namespace="")) == []


def test_two_servers_see_each_others_at_once_and_after_a_start_all_are_there(place, on, meme, copy):
    async def scene(server):
        async with a_server(place) as another:
            assert await another.ids(copy) == []
            await server.tried("here", meme)
            assert await another.ids(copy) == ["here"]
            await another.tried("there", copy)
            assert await server.ids(copy) == ["there", "here"]

    on(scene)
    assert on(lambda server: server.ids(copy)) == ["there", "here"]


ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from tests.support.drawn_memes import drawn
from tests.unit.test_near import CAPTION, a_server, picture_of

async def run():
    async with a_server(Path(sys.argv[1])) as server:
        await server.tried("in another process", picture_of(drawn("chelsea.png", CAPTION)))
        print(*await server.ids(picture_of(drawn("chelsea.png", CAPTION))), flush=True)

asyncio.run(run())
"""


@pytest.mark.slow
def test_another_process_sees_them_and_is_seen(place, on, meme, copy):
    async def scene(server):
        await server.tried("here", meme)
        assert await server.ids(copy) == ["here"]
        run = [sys.executable, "-c", ELSEWHERE, str(place)]
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, cwd=Path.cwd())
        assert done.stdout.split() == ["in", "another", "process", "here"], done.stderr
        assert await server.ids(copy) == ["in another process", "here"]

    on(scene)


def test_many_questions_at_once_read_once_or_twice_and_none_misses_what_was_kept_before(on, meme, copy):
    async def scene(server):
        reads = 0
        looks = server.docket.fingerprints.fingerprints

        async def counted(since, *, most):
            nonlocal reads
            reads += 1
            return await looks(since, most=most)

        server.docket.fingerprints.fingerprints = counted
        await server.tried("first", meme)
        assert await asyncio.gather(*(server.ids(copy, "said now") for _ in range(20))) == [["first"]] * 20
        # A round reads until nothing comes: twice where there was something, once where not.
        assert reads <= 3

    on(scene)


def test_a_caller_who_leaves_takes_nobody_along(on, meme, copy):
    async def scene(server):
        await server.tried("first", meme)
        leaving = asyncio.create_task(server.ids(copy))
        staying = asyncio.create_task(server.ids(copy))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == ["first"]
        await server.tried("second", meme)
        assert await server.ids(copy) == ["second", "first"]

    on(scene)


def test_a_docket_that_is_gone_is_told_and_later_all_is_found(on, meme, copy):
    async def scene(server):
        await server.tried("first", meme)
        looks = server.docket.fingerprints.fingerprints

        async def gone(since, *, most):
            raise Unavailable("gone", reason="DOCKET_UNAVAILABLE")

        server.docket.fingerprints.fingerprints = gone
        for _ in range(2):
            with pytest.raises(Unavailable, match="gone"):
                await server.ids(copy)
        server.docket.fingerprints.fingerprints = looks
        assert await server.ids(copy) == ["first"]

    on(scene)


def test_a_verdict_does_not_wait_for_a_look_that_another_server_holds_up(on, meme, caplog, monkeypatch):
    monkeypatch.setattr("serving.runner.near_duplicates._PATIENCE", 0.01)

    async def scene(server):
        go_on = asyncio.Event()
        keep = server.docket.fingerprints.put_fingerprint

        async def held_up(trial_id, look):
            await go_on.wait()
            await keep(trial_id, look)

        server.docket.fingerprints.put_fingerprint = held_up
        await server.tried("first", meme)
        assert await server.cited(meme) == []
        monkeypatch.setattr("serving.runner.near_duplicates._PATIENCE", 60.0)
        go_on.set()
        await server.near.close()  # waits for it
        assert [trial_id for _, trial_id, _ in await server.docket.fingerprints.fingerprints(0)] == ["first"]

    on(scene)
    assert "its look is not kept yet" in caplog.text


def test_a_look_that_can_t_be_kept_is_told(on, meme):
    async def scene(server):
        async def full(trial_id, look):
            raise Unavailable("full", reason="DOCKET_UNAVAILABLE")

        server.docket.fingerprints.put_fingerprint = full
        with pytest.raises(Unavailable, match="full"):
            await server.near.learn("first", meme, text=TEXT, text_read=False, namespace=NAMESPACE)

    on(scene)


# Pictures of other kinds


def test_animated_memes_are_found_by_any_frame_and_are_the_same_in_all(on, still, other):
    blank = Image.new("RGB", still.size, "white")
    another = drawn("coffee.png", CAPTION)

    async def scene(server):
        await server.tried("moving", picture_of(blank, still, another))
        again = COPIES["JPEG, quality 70"]
        (found,) = await server.cited(picture_of(blank, again(still), again(another)))
        # Nothing can be said of a blank frame, so that these are not the same.
        assert (found.trial_id, found.same_text, found.same_picture) == ("moving", True, False)
        assert [each.same_picture for each in await server.cited(picture_of(again(still)))] == [False]
        assert await server.cited(other) == []
        await server.tried("moving too", picture_of(still, another))
        moved = {each.trial_id: each for each in await server.cited(picture_of(again(still), again(another)))}
        assert moved["moving too"].same_picture and not moved["moving"].same_picture
        turned = await server.cited(picture_of(again(another), again(still)))
        assert turned and not any(each.same_picture for each in turned)

    on(scene)


def test_a_picture_with_too_little_in_it_is_near_nothing_and_harms_nothing(on, meme):
    blank = picture_of(Image.new("RGB", (400, 300), "white"))

    async def scene(server):
        await server.tried("blank", blank)
        await server.tried("first", meme)
        assert await server.cited(blank) == []
        assert await server.ids(meme) == ["first"]

    on(scene)


@pytest.mark.parametrize("text", ["", "Schöne Grüße 🎉", "soup " * 2000, "\ud800 lone"])
def test_a_look_comes_back_with_every_text_and_namespace(on, meme, text):
    async def scene(server):
        await server.tried("first", meme, text, namespace="größe/1", read=True)
        (found,) = await server.cited(meme, text, namespace="größe/1", read=True)
        assert (found.trial_id, found.same_text, found.same_picture) == ("first", True, True)
        (other,) = await server.cited(meme, text + " and more of it, much more", namespace="größe/1")
        assert not other.same_text

    on(scene)


def test_looks_that_are_damaged_or_of_a_later_format_are_passed_over(on, meme, copy, caplog):
    async def scene(server):
        await server.docket.fingerprints.put_fingerprint("later", b"\x02 whatever comes")
        await server.docket.fingerprints.put_fingerprint("none", b"")
        await server.docket.fingerprints.put_fingerprint("damaged", b"\x01\x02 cut off")
        await server.tried("first", meme)
        assert await server.ids(copy) == ["first"]

    on(scene)
    assert [record.getMessage() for record in caplog.records] == [
        "trial damaged: its look is damaged and is passed over"
    ]


# Giving a verdict again


def changed(still: Image.Image, name: str) -> Picture:
    """A picture that is near or not, and whose tiles differ or not."""
    return {
        "copy": lambda: picture_of(COPIES["JPEG, quality 40"](still)),
        "disc": lambda: picture_of(with_a_disc(still)),
        "other": lambda: picture_of(drawn("rocket.jpg", CAPTION)),
    }[name]()


@pytest.mark.parametrize(
    ("near", "text", "tiles", "name", "radius", "same"),
    [
        (True, True, True, "copy", 80, True),
        (True, True, False, "disc", 80, False),
        (True, False, True, "copy", 80, False),
        (True, False, False, "disc", 80, False),
        (False, True, True, "copy", 0, False),  # the same to the eye, and the hash is further off than is asked for
        (False, True, False, "other", 80, False),
        (False, False, True, "copy", 0, False),
        (False, False, False, "other", 80, False),
    ],
)
@pytest.mark.parametrize("read", [False, True])
def test_a_verdict_is_given_again_only_where_hash_text_and_tiles_agree(
    on, still, meme, near, text, tiles, name, radius, same, read
):
    new = changed(still, name)
    words = TEXT if text else TEXT.replace("soup", "what is left of it").replace("My aunt", "His other uncle")

    async def scene(server):
        await server.tried("first", meme, read=read)
        cited = await server.cited(new, words, read=read)
        assert bool(cited) is near
        for each in cited:
            assert (each.same_text, each.same_picture) == (text, tiles and text)
        return await server.same(new, words, read=read)

    assert on(scene, reuse_near=True, nearness=MatchThresholds(radius=radius)) == ("first" if same else None)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"reuse_near": False}, None),
        ({"reuse_near": True, "reuse": "off"}, None),
        ({"reuse_near": True}, "mine"),
        ({"reuse_near": True, "reuse": "everywhere"}, "theirs"),
    ],
)
def test_a_verdict_is_given_again_only_where_the_settings_allow_it(on, meme, copy, options, given):
    async def scene(server):
        await server.tried("mine", meme)
        await server.tried("theirs", meme, namespace="shop")
        return await server.same(copy)

    assert on(scene, **options) == given


def test_nothing_is_given_again_that_was_overruled_or_is_open_or_will_not_do(on, meme, copy):
    async def scene(server):
        await server.tried("open", meme, label=None)
        assert await server.same(copy) is None
        await server.tried("first", meme)
        assert await server.same(copy) == "first"
        asked = []

        async def usable(trial_id):
            asked.append(trial_id)
            return trial_id == "first"

        await server.tried("with other versions", meme)
        assert await server.same(copy, usable=usable) == "first"
        assert asked == ["with other versions", "first"]
        await server.overrule("first", N)
        assert await server.same(copy, usable=usable) is None

    on(scene, reuse_near=True)


def test_what_was_erased_since_it_was_looked_at_is_passed_over(on, meme, copy):
    async def scene(server):
        for trial_id in ("older", "erased"):
            await server.tried(trial_id, meme)
        assert await server.same(copy) == "erased"  # it is at hand from now on
        await server.docket.eraser.erase("erased", who="Ruth", why="asked for", at=AT)
        return await server.same(copy)

    assert on(scene, reuse_near=True) == "older"


def test_where_no_text_was_read_the_tiles_are_held_to_more(on, still, meme):
    """A reader that reads nothing does not say that nothing stands there."""

    async def scene(server):
        await server.tried("read", meme, "", read=True)
        await server.tried("given", meme, "", namespace="shop")
        faint = still.copy()
        ImageDraw.Draw(faint).rectangle((300, 200, 311, 211), fill=tuple(int(c) for c in _toned(still)))
        new = picture_of(faint)
        return await server.same(new, "", namespace="shop"), await server.same(new, "", read=True)

    assert on(scene, reuse_near=True) == ("given", None)


def _toned(still: Image.Image) -> np.ndarray:
    """What stands at a place, 26 levels brighter or darker: between the two bounds of the tiles."""
    here = np.asarray(still)[200:212, 300:312].reshape(-1, 3).mean(axis=0)
    return np.where(here > 128, here - 26, here + 26)


# DP-4: same picture, other text

PAIRS = 75 if FULL else 4
"""A picture; there are 46."""
EDITS = ("the same", "JPEG, quality 40", "half the size", "grey", "brighter by 20 %", "mirrored", "white border")


def captions(base: str) -> Sequence[Caption]:
    rng = random.Random(base)
    groups = ("Blueland", "Redhill", "Greenfield")
    return [
        Caption("My aunt told me", rng.choice(groups), f"bring soup number {number} to the neighbours", "in spring")
        for number in range(1 + PAIRS // 15)
    ]


def test_dp_4_is_about_so_many_pairs():
    assert len(BASES) * PAIRS == (3450 if FULL else 184)


@pytest.mark.promise("DP-4", "3,450 pairs of the same picture under another text: 0 verdicts given again")
@pytest.mark.parametrize("base", BASES)
def test_dp_4_no_verdict_is_given_again_for_the_same_picture_under_another_text(on, base):
    """Each pair twice: with the texts as they are given, and as a reader that makes no mistake reads them, where one
    letter in twenty is forgiven. All of them against all known memes of the picture."""
    known = captions(base)

    async def scene(server):
        for number, caption in enumerate(known):
            await server.tried(f"known {number}", picture_of(drawn(base, caption)), caption.words())
        copy = picture_of(COPIES["JPEG, quality 70"](drawn(base, known[0])))
        # Or nothing would be shown by this.
        assert await server.same(copy, known[0].words(), read=True) == "known 0"
        reused, rng = [], random.Random(f"pairs of {base}")
        for pair in range(PAIRS):
            caption, change = known[pair % len(known)], list(CAPTIONS)[pair % len(CAPTIONS)]
            text = CAPTIONS[change](caption, rng)
            while text in [each.words() for each in known]:
                text = CAPTIONS[change](caption, rng)
            edit = COPIES[rng.choice(EDITS)]
            new = picture_of(edit(drawn(base, Caption("", "", "", "", text=text or " "))))
            for read in (False, True):
                if (trial := await server.same(new, text, read=read)) is not None:
                    reused.append((change, text, read, trial))
        return reused

    assert on(scene, reuse_near=True) == []


# Texts that were sent alone


async def said_alone(server, trial_id, text, label=H, *, namespace=NAMESPACE):
    """A trial of a text without a picture, as a courthouse keeps it."""
    meme = MemeIdentity(
        bytes_sha256="",
        pixels_sha256="",
        format="",
        width=0,
        height=0,
        frame_count=0,
        frames_used=(),
        picture_given=False,
        text_digest=text_digest(text),
        namespace=namespace,
    )
    first = opened(trial_id, picture_of(drawn("chelsea.png", CAPTION)), namespace)
    await server.docket.writer.append(first.model_copy(update={"meme": meme}))
    await server.near.learn(trial_id, None, text=text, text_read=False, namespace=namespace)
    await server.docket.writer.append(VerdictGiven(trial_id=trial_id, seq=1, at=AT, verdict=a_verdict(label)))


def test_a_text_alone_is_near_to_others_of_the_same_letters(place, on):
    async def scene(server):
        await said_alone(server, "a", TEXT)
        await said_alone(server, "b", f"{TEXT.upper()} !!!", N)
        await said_alone(server, "other", "Another text altogether")
        await said_alone(server, "elsewhere", TEXT, namespace="forum")
        return await server.cited(None, TEXT), await server.cited(None, "no letters of these")

    async def ids(server):
        return await server.ids(None, TEXT.replace("o", "0"))

    (cited, none) = on(scene)
    assert [(each.trial_id, each.label) for each in cited] == [("b", N), ("a", H)] and none == []
    assert all(each.text_alone and each.same_text and not each.same_picture and each.distance == 0 for each in cited)
    assert on(ids) == ["b", "a"], "after a start, and with a letter that looks like another"
    assert on(ids, reuse="everywhere") == ["elsewhere", "b", "a"]


def test_a_text_alone_is_near_to_no_picture_and_no_picture_to_it(on, meme):
    async def scene(server):
        await server.tried("pictured", meme, TEXT)
        await said_alone(server, "alone", TEXT)
        return await server.ids(None, TEXT), await server.ids(meme, TEXT)

    assert on(scene) == (["alone"], ["pictured"])


@pytest.mark.parametrize("text", ["!!!", "\u2620\u2620", "   "])
def test_texts_without_letters_are_not_all_the_same(on, text):
    async def scene(server):
        await said_alone(server, "a", "???")
        return await server.ids(None, text)

    assert on(scene) == []


def test_texts_that_share_a_fingerprint_by_chance_are_told_apart(on, monkeypatch):
    monkeypatch.setattr("serving.runner.near_duplicates._fingerprint", lambda _: b"the same")

    async def scene(server):
        await said_alone(server, "a", "one text")
        await said_alone(server, "b", "another text")
        return await server.ids(None, "one text")

    assert on(scene) == ["a"]


def test_of_more_texts_than_are_held_the_latest_are(on):
    async def scene(server):
        for number in range(6):
            await said_alone(server, f"t{number}", f"text {'abcdef'[number]}")
            await server.near.catch_up()
        assert len(server.near) <= 5
        return [await server.ids(None, f"text {letter}") for letter in "abcdef"]

    assert on(scene, most=4) == [[], [], ["t2"], ["t3"], ["t4"], ["t5"]]


# What it costs


def test_a_known_meme_takes_a_few_hundred_bytes(on):
    rng = np.random.default_rng(0)
    many = 20_000

    def look(number: int) -> bytes:
        words = MemeText(
            f"People from Blueland bring soup to the neighbours, for the {number}th time this spring", True
        )
        pixels = hashlib.sha256(str(number).encode()).hexdigest()
        return StoredFingerprint(pixels, NAMESPACE, words, rng.integers(0, 256, (1, 32), dtype=np.uint8)).to_bytes()

    looks = [(number, f"8f14e45f-ceea-467f-a4d2-{number:012}", look(number)) for number in range(1, many + 1)]
    assert max(len(each) for *_, each in looks) < 250

    async def scene(server):
        async def page(since, *, most):
            return looks[since : since + most]

        server.docket.fingerprints.fingerprints = page
        await server.near.catch_up()

    async def measured(server):
        tracemalloc.start()
        await scene(server)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(server.near) == many
        return held / many

    held = on(measured)
    # FAISS, which is not traced, has its 32 bytes a hash on top, and up to as many while it grows.
    assert 150 < held < 350


def test_of_more_than_are_held_the_latest_are(on):
    pictures = [picture_of(drawn(base, CAPTION)) for base in BASES[:6]]

    async def ids(server):
        return [await server.ids(each) for each in pictures]

    async def scene(server):
        for number, each in enumerate(pictures):
            await server.tried(f"t{number}", each)
            await server.near.catch_up()
        assert len(server.near) <= 5
        return await ids(server)

    assert on(scene, most=4) == [[], [], ["t2"], ["t3"], ["t4"], ["t5"]]
    assert on(ids) == [[f"t{number}"] for number in range(6)]
