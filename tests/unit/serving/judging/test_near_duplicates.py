"""Near-duplicate fingerprints in the docket: which trials are found, which verdicts are reused, and memory use."""

import asyncio
import hashlib
import random
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from court.errors import Unavailable
from court.events import MemeIdentity, VerdictGiven
from court.meme import text_digest
from retrieval.near_duplicates.match import MatchThresholds, MemeText
from serving.judging.near_duplicates import StoredFingerprint
from tests.support.drawn_memes import BACKGROUNDS, CAPTIONS, COPIES, Caption, captioned_meme
from tests.support.near import AT, CAPTION, NAMESPACE, TEXT, H, N, U, a_server, a_verdict, opened, picture_of
from tests.support.near import meme as meme
from tests.support.near import place as place
from tests.support.near import still as still
from tests.support.playing import run_within
from tests.support.sizes import FULL


@pytest.fixture
def serve(place):
    """A function that opens a server."""
    return partial(a_server, place)


@pytest.fixture(scope="module")
def copy(still):
    return picture_of(COPIES["JPEG, quality 40"](still))


@pytest.fixture(scope="module")
def other():
    return picture_of(captioned_meme("rocket.jpg", CAPTION))


def with_a_disc(still):
    changed = still.copy()
    ImageDraw.Draw(changed).ellipse((300, 200, 340, 240), fill="red", outline="white", width=2)
    return changed


# Citations


async def test_copy_is_cited_with_its_distance_and_the_outcome_of_its_trial(serve, meme, copy, other):
    async with serve() as server:
        await server.record_trial("first", meme, label=H)
        (found,) = await server.find(copy)
        assert (found.trial_id, found.label, found.same_text, found.same_picture) == ("first", H, True, True)
        assert 0 < found.distance <= 31
        (other_text,) = await server.find(copy, "something else")
        assert (other_text.distance, other_text.same_text, other_text.same_picture) == (found.distance, False, False)
        (itself,) = await server.find(meme)
        assert (itself.distance, itself.same_text, itself.same_picture) == (0, True, True)
        assert await server.find(other) == []


async def test_difference_in_a_single_tile_is_detected(serve, still, meme):
    async with serve() as server:
        await server.record_trial("first", meme)
        (found,) = await server.find(picture_of(with_a_disc(still)))
        assert (found.same_text, found.same_picture) == (True, False)


async def test_trials_without_a_verdict_are_not_cited(serve, meme, copy):
    async with serve() as server:
        await server.record_trial("open", meme, label=None)
        await server.index.learn("of no trial", meme, text=TEXT, text_read=False, namespace=NAMESPACE)
        assert await server.find(copy) == []
        await server.docket.writer.append(VerdictGiven(trial_id="open", seq=1, at=AT, verdict=a_verdict(N)))
        assert await server.ids(copy) == ["open"]


async def test_overruled_trial_is_cited_with_the_reviewer_s_label(serve, meme, copy):
    async with serve() as server:
        await server.record_trial("first", meme, label=N)
        assert [each.label for each in await server.find(copy)] == [N]
        await server.overrule("first", H)
        assert [each.label for each in await server.find(copy)] == [H]
        await server.record_trial("undecided", meme, label=U)
        assert {each.label for each in await server.find(copy)} == {H, U}


async def test_harmful_duplicate_is_cited_among_many_harmless_ones(serve, still, meme, copy):
    async with serve() as server:
        await server.record_trial("harmful", meme, "what was said before", label=H)
        for number in range(12):
            await server.record_trial(f"benign {number}", copy, label=N)
        found = await server.find(copy)
        assert [each.label for each in found].count(H) == 1
        assert [each.label for each in found].count(N) == 5
        assert [each.distance for each in found] == sorted(each.distance for each in found)
        assert {each.trial_id for each in found if each.label is N} == {f"benign {n}" for n in range(7, 12)}


async def test_same_text_is_found_among_more_captions_than_are_compared(serve, meme, copy, monkeypatch):
    monkeypatch.setattr("serving.judging.near_duplicates._WEIGHED", 3)
    async with serve() as server:
        await server.record_trial("wanted", meme, "Bring  SOUP", label=H)
        for number in range(9):
            await server.record_trial(f"other {number}", copy, f"caption of the number {number}", label=H)
        assert "wanted" in await server.ids(copy, "bring soup")
        assert "wanted" not in await server.ids(copy, "bring soap")


# Namespaces and servers


def test_other_namespaces_are_visible_only_with_reuse_everywhere(serve, meme, copy):
    async def first(server):
        await server.record_trial("mine", meme)
        await server.record_trial("theirs", meme, namespace="shop")

    async def ids(server):
        return sorted(await server.ids(copy)), sorted(await server.ids(copy, namespace="shop"))

    run_within(serve(), first)
    assert run_within(serve(), ids) == run_within(serve(reuse="off"), ids) == (["mine"], ["theirs"])
    assert run_within(serve(reuse="everywhere"), ids) == (["mine", "theirs"], ["mine", "theirs"])
    assert run_within(serve(), lambda server: server.ids(copy, namespace="")) == []


def test_two_servers_share_fingerprints_at_once_and_across_restarts(place, serve, meme, copy):
    async def scene(server):
        async with a_server(place) as another:
            assert await another.ids(copy) == []
            await server.record_trial("here", meme)
            assert await another.ids(copy) == ["here"]
            await another.record_trial("there", copy)
            assert await server.ids(copy) == ["there", "here"]

    run_within(serve(), scene)
    assert run_within(serve(), lambda server: server.ids(copy)) == ["there", "here"]


ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from tests.support.drawn_memes import captioned_meme
from tests.support.near import CAPTION, a_server, picture_of

async def run():
    async with a_server(Path(sys.argv[1])) as server:
        await server.record_trial("in another process", picture_of(captioned_meme("chelsea.png", CAPTION)))
        print(*await server.ids(picture_of(captioned_meme("chelsea.png", CAPTION))), flush=True)

asyncio.run(run())
"""


@pytest.mark.slow
async def test_processes_share_fingerprints(place, serve, meme, copy):
    async with serve() as server:
        await server.record_trial("here", meme)
        assert await server.ids(copy) == ["here"]
        run = [sys.executable, "-c", ELSEWHERE, str(place)]
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, cwd=Path.cwd())
        assert done.stdout.split() == ["in", "another", "process", "here"], done.stderr
        assert await server.ids(copy) == ["in another process", "here"]


async def test_concurrent_searches_share_reads_and_see_all_earlier_trials(serve, meme, copy):
    async with serve() as server:
        reads = 0
        fingerprints = server.docket.fingerprints.fingerprints

        async def counted(since, *, most):
            nonlocal reads
            reads += 1
            return await fingerprints(since, most=most)

        server.docket.fingerprints.fingerprints = counted
        await server.record_trial("first", meme)
        assert await asyncio.gather(*(server.ids(copy, "said now") for _ in range(20))) == [["first"]] * 20
        # Each round reads until nothing new comes: twice with new fingerprints, otherwise once.
        assert reads <= 3


async def test_cancelled_search_does_not_cancel_others(serve, meme, copy):
    async with serve() as server:
        await server.record_trial("first", meme)
        leaving = asyncio.create_task(server.ids(copy))
        staying = asyncio.create_task(server.ids(copy))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == ["first"]
        await server.record_trial("second", meme)
        assert await server.ids(copy) == ["second", "first"]


async def test_unavailable_docket_is_reported_and_searches_recover(serve, meme, copy):
    async with serve() as server:
        await server.record_trial("first", meme)
        fingerprints = server.docket.fingerprints.fingerprints

        async def gone(since, *, most):
            raise Unavailable("gone", reason="DOCKET_UNAVAILABLE")

        server.docket.fingerprints.fingerprints = gone
        for _ in range(2):
            with pytest.raises(Unavailable, match="gone"):
                await server.ids(copy)
        server.docket.fingerprints.fingerprints = fingerprints
        assert await server.ids(copy) == ["first"]


async def test_verdict_does_not_wait_for_a_fingerprint_blocked_by_another_server(serve, meme, caplog, monkeypatch):
    monkeypatch.setattr("serving.judging.near_duplicates._PATIENCE", 0.01)
    async with serve() as server:
        go_on = asyncio.Event()
        put_fingerprint = server.docket.fingerprints.put_fingerprint

        async def blocked(trial_id, fingerprint):
            await go_on.wait()
            await put_fingerprint(trial_id, fingerprint)

        server.docket.fingerprints.put_fingerprint = blocked
        await server.record_trial("first", meme)
        assert await server.find(meme) == []
        monkeypatch.setattr("serving.judging.near_duplicates._PATIENCE", 60.0)
        go_on.set()
        await server.index.close()  # waits for the pending write
        assert [trial_id for _, trial_id, _ in await server.docket.fingerprints.fingerprints(0)] == ["first"]
    assert "its fingerprint is not stored yet" in caplog.text


async def test_failure_to_store_a_fingerprint_is_reported(serve, meme):
    async with serve() as server:

        async def full(trial_id, fingerprint):
            raise Unavailable("full", reason="DOCKET_UNAVAILABLE")

        server.docket.fingerprints.put_fingerprint = full
        with pytest.raises(Unavailable, match="full"):
            await server.index.learn("first", meme, text=TEXT, text_read=False, namespace=NAMESPACE)


# Other kinds of pictures


async def test_animations_are_found_by_any_frame_and_equal_only_in_all_frames(serve, still, other):
    blank = Image.new("RGB", still.size, "white")
    another = captioned_meme("coffee.png", CAPTION)
    async with serve() as server:
        await server.record_trial("moving", picture_of(blank, still, another))
        again = COPIES["JPEG, quality 70"]
        (found,) = await server.find(picture_of(blank, again(still), again(another)))
        # A blank frame can't be compared, so these don't count as the same picture.
        assert (found.trial_id, found.same_text, found.same_picture) == ("moving", True, False)
        assert [each.same_picture for each in await server.find(picture_of(again(still)))] == [False]
        assert await server.find(other) == []
        await server.record_trial("moving too", picture_of(still, another))
        cited = {each.trial_id: each for each in await server.find(picture_of(again(still), again(another)))}
        assert cited["moving too"].same_picture and not cited["moving"].same_picture
        turned = await server.find(picture_of(again(another), again(still)))
        assert turned and not any(each.same_picture for each in turned)


async def test_picture_with_too_little_detail_matches_nothing_and_disturbs_nothing(serve, meme):
    blank = picture_of(Image.new("RGB", (400, 300), "white"))
    async with serve() as server:
        await server.record_trial("blank", blank)
        await server.record_trial("first", meme)
        assert await server.find(blank) == []
        assert await server.ids(meme) == ["first"]


@pytest.mark.parametrize("text", ["", "Schöne Grüße 🎉", "soup " * 2000, "\ud800 lone"])
async def test_fingerprint_round_trips_with_any_text_and_namespace(serve, meme, text):
    async with serve() as server:
        await server.record_trial("first", meme, text, namespace="größe/1", read=True)
        (found,) = await server.find(meme, text, namespace="größe/1", read=True)
        assert (found.trial_id, found.same_text, found.same_picture) == ("first", True, True)
        (other,) = await server.find(meme, text + " and more of it, much more", namespace="größe/1")
        assert not other.same_text


async def test_damaged_fingerprints_and_later_formats_are_skipped(serve, meme, copy, caplog):
    async with serve() as server:
        await server.docket.fingerprints.put_fingerprint("later", b"\x02 whatever comes")
        await server.docket.fingerprints.put_fingerprint("none", b"")
        await server.docket.fingerprints.put_fingerprint("damaged", b"\x01\x02 cut off")
        await server.record_trial("first", meme)
        assert await server.ids(copy) == ["first"]
    assert [record.getMessage() for record in caplog.records] == [
        "trial damaged: its fingerprint is damaged and is skipped"
    ]


# Reusing a verdict


def changed(still, name):
    """Returns a variant of the still by name; the parameters of the test below say how it differs."""
    return {
        "copy": lambda: picture_of(COPIES["JPEG, quality 40"](still)),
        "disc": lambda: picture_of(with_a_disc(still)),
        "other": lambda: picture_of(captioned_meme("rocket.jpg", CAPTION)),
    }[name]()


@pytest.mark.parametrize(
    ("found", "text", "tiles", "name", "radius", "same"),
    [
        (True, True, True, "copy", 80, True),
        (True, True, False, "disc", 80, False),
        (True, False, True, "copy", 80, False),
        (True, False, False, "disc", 80, False),
        (False, True, True, "copy", 0, False),  # looks the same, but its hash is farther away than the radius
        (False, True, False, "other", 80, False),
        (False, False, True, "copy", 0, False),
        (False, False, False, "other", 80, False),
    ],
)
@pytest.mark.parametrize("read", [False, True])
async def test_verdict_is_reused_only_if_hash_text_and_tiles_agree(
    serve, still, meme, found, text, tiles, name, radius, same, read
):
    new = changed(still, name)
    words = TEXT if text else TEXT.replace("soup", "what is left of it").replace("My aunt", "His other uncle")
    async with serve(reuse_near=True, nearness=MatchThresholds(radius=radius)) as server:
        await server.record_trial("first", meme, read=read)
        duplicates = await server.find(new, words, read=read)
        assert bool(duplicates) is found
        for each in duplicates:
            assert (each.same_text, each.same_picture) == (text, tiles and text)
        assert await server.reusable_trial(new, words, read=read) == ("first" if same else None)


@pytest.mark.parametrize(
    ("options", "reused"),
    [
        ({"reuse_near": False}, None),
        ({"reuse_near": True, "reuse": "off"}, None),
        ({"reuse_near": True}, "mine"),
        ({"reuse_near": True, "reuse": "everywhere"}, "theirs"),
    ],
)
async def test_verdict_is_reused_only_if_settings_allow_it(serve, meme, copy, options, reused):
    async with serve(**options) as server:
        await server.record_trial("mine", meme)
        await server.record_trial("theirs", meme, namespace="shop")
        assert await server.reusable_trial(copy) == reused


async def test_overruled_open_and_unusable_verdicts_are_not_reused(serve, meme, copy):
    async with serve(reuse_near=True) as server:
        await server.record_trial("open", meme, label=None)
        assert await server.reusable_trial(copy) is None
        await server.record_trial("first", meme)
        assert await server.reusable_trial(copy) == "first"
        checked = []

        async def usable(trial_id):
            checked.append(trial_id)
            return trial_id == "first"

        await server.record_trial("with other versions", meme)
        assert await server.reusable_trial(copy, usable=usable) == "first"
        assert checked == ["with other versions", "first"]
        await server.overrule("first", N)
        assert await server.reusable_trial(copy, usable=usable) is None


async def test_trial_erased_since_it_was_indexed_is_skipped(serve, meme, copy):
    async with serve(reuse_near=True) as server:
        for trial_id in ("older", "erased"):
            await server.record_trial(trial_id, meme)
        assert await server.reusable_trial(copy) == "erased"  # it is in the index from now on
        await server.docket.eraser.erase("erased", who="Ruth", why="asked for", at=AT)
        assert await server.reusable_trial(copy) == "older"


async def test_tile_threshold_is_stricter_if_no_text_could_be_read(serve, still, meme):
    """A reader that reads nothing does not prove that there is no text."""
    async with serve(reuse_near=True) as server:
        await server.record_trial("read", meme, "", read=True)
        await server.record_trial("given", meme, "", namespace="shop")
        faint = still.copy()
        ImageDraw.Draw(faint).rectangle((300, 200, 311, 211), fill=tuple(int(c) for c in _toned(still)))
        new = picture_of(faint)
        assert (
            await server.reusable_trial(new, "", namespace="shop"),
            await server.reusable_trial(new, "", read=True),
        ) == ("given", None)


def _toned(still):
    """Returns the colour of a region, 26 levels brighter or darker: between the two thresholds of the tiles."""
    region = np.asarray(still)[200:212, 300:312].reshape(-1, 3).mean(axis=0)
    return np.where(region > 128, region - 26, region + 26)


# DP-4: same picture, other text

PAIRS = 75 if FULL else 2
"""Pairs per base picture."""
BASES = BACKGROUNDS if FULL else BACKGROUNDS[::3]
EDITS = ("the same", "JPEG, quality 40", "half the size", "grey", "brighter by 20 %", "mirrored", "white border")


def captions(base):
    rng = random.Random(base)
    groups = ("Blueland", "Redhill", "Greenfield")
    return [
        Caption("My aunt told me", rng.choice(groups), f"bring soup number {number} to the neighbours", "in spring")
        for number in range(1 + PAIRS // 15)
    ]


def test_dp_4_covers_the_stated_number_of_pairs():
    assert len(BASES) * PAIRS == (3450 if FULL else 32) >= len(CAPTIONS), "each change of a caption is tried"


@pytest.mark.promise("DP-4", "3,450 pairs of the same picture under another text: 0 verdicts given again")
@pytest.mark.parametrize("base", BASES)
async def test_dp_4_verdict_is_not_reused_for_the_same_picture_with_another_text(serve, base):
    """Tests each pair with texts as given, and as read by a perfect reader, where one letter in twenty may differ. All
    are compared with all known memes of the picture."""
    known = captions(base)
    async with serve(reuse_near=True) as server:
        for number, caption in enumerate(known):
            await server.record_trial(f"known {number}", picture_of(captioned_meme(base, caption)), caption.words())
        copy = picture_of(COPIES["JPEG, quality 70"](captioned_meme(base, known[0])))
        # Otherwise the test would prove nothing.
        assert await server.reusable_trial(copy, known[0].words(), read=True) == "known 0"
        reused, rng = [], random.Random(f"pairs of {base}")
        for pair in range(PAIRS):
            change = list(CAPTIONS)[(BASES.index(base) * PAIRS + pair) % len(CAPTIONS)]
            caption = known[pair % len(known)]
            text = CAPTIONS[change](caption, rng)
            while text in [each.words() for each in known]:
                text = CAPTIONS[change](caption, rng)
            edit = COPIES[rng.choice(EDITS)]
            new = picture_of(edit(captioned_meme(base, Caption("", "", "", "", text=text or " "))))
            for read in (False, True):
                if (trial := await server.reusable_trial(new, text, read=read)) is not None:
                    reused.append((change, text, read, trial))
        assert reused == []


# Texts without a picture


async def record_text_trial(server, trial_id, text, label=H, *, namespace=NAMESPACE):
    """Records a trial of a text without a picture, as the trial runner would."""
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
    template = opened(trial_id, picture_of(captioned_meme("chelsea.png", CAPTION)), namespace)
    await server.docket.writer.append(template.model_copy(update={"meme": meme}))
    await server.index.learn(trial_id, None, text=text, text_read=False, namespace=namespace)
    await server.docket.writer.append(VerdictGiven(trial_id=trial_id, seq=1, at=AT, verdict=a_verdict(label)))


def test_text_without_picture_matches_texts_of_the_same_letters(place, serve):
    async def scene(server):
        await record_text_trial(server, "a", TEXT)
        await record_text_trial(server, "b", f"{TEXT.upper()} !!!", N)
        await record_text_trial(server, "other", "Another text altogether")
        await record_text_trial(server, "elsewhere", TEXT, namespace="forum")
        return await server.find(None, TEXT), await server.find(None, "no letters of these")

    async def ids(server):
        return await server.ids(None, TEXT.replace("o", "0"))

    (found, none) = run_within(serve(), scene)
    assert [(each.trial_id, each.label) for each in found] == [("b", N), ("a", H)] and none == []
    assert all(each.text_alone and each.same_text and not each.same_picture and each.distance == 0 for each in found)
    assert run_within(serve(), ids) == ["b", "a"], "after a start, and with a letter that looks like another"
    assert run_within(serve(reuse="everywhere"), ids) == ["elsewhere", "b", "a"]


async def test_text_without_picture_never_matches_a_picture(serve, meme):
    async with serve() as server:
        await server.record_trial("pictured", meme, TEXT)
        await record_text_trial(server, "alone", TEXT)
        assert (await server.ids(None, TEXT), await server.ids(meme, TEXT)) == (["alone"], ["pictured"])


@pytest.mark.parametrize("text", ["!!!", "\u2620\u2620", "   "])
async def test_texts_without_letters_do_not_match_each_other(serve, text):
    async with serve() as server:
        await record_text_trial(server, "a", "???")
        assert await server.ids(None, text) == []


async def test_texts_with_colliding_fingerprints_are_distinguished(serve, monkeypatch):
    monkeypatch.setattr("serving.judging.near_duplicates._fingerprint", lambda _: b"the same")
    async with serve() as server:
        await record_text_trial(server, "a", "one text")
        await record_text_trial(server, "b", "another text")
        assert await server.ids(None, "one text") == ["a"]


async def test_index_holds_the_latest_texts_up_to_its_limit(serve):
    async with serve(most=4) as server:
        for number in range(6):
            await record_text_trial(server, f"t{number}", f"text {'abcdef'[number]}")
            await server.index.catch_up()
        assert len(server.index) <= 5
        assert [await server.ids(None, f"text {letter}") for letter in "abcdef"] == [
            [],
            [],
            ["t2"],
            ["t3"],
            ["t4"],
            ["t5"],
        ]


# Memory


async def test_indexed_meme_takes_a_few_hundred_bytes(serve):
    rng = np.random.default_rng(0)
    many = 20_000

    def fingerprint(number):
        words = MemeText(
            f"People from Blueland bring soup to the neighbours, for the {number}th time this spring", True
        )
        pixels = hashlib.sha256(str(number).encode()).hexdigest()
        return StoredFingerprint(pixels, NAMESPACE, words, rng.integers(0, 256, (1, 32), dtype=np.uint8)).to_bytes()

    fingerprints = [
        (number, f"8f14e45f-ceea-467f-a4d2-{number:012}", fingerprint(number)) for number in range(1, many + 1)
    ]
    assert max(len(each) for *_, each in fingerprints) < 250

    async def scene(server):
        async def page(since, *, most):
            return fingerprints[since : since + most]

        server.docket.fingerprints.fingerprints = page
        await server.index.catch_up()

    async with serve() as server:
        tracemalloc.start()
        await scene(server)
        allocated, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(server.index) == many
        bytes_per_meme = allocated / many
    # FAISS's memory is not traced: another 32 bytes per hash, and up to as much again while it grows.
    assert 150 < bytes_per_meme < 350


def test_index_holds_the_latest_pictures_up_to_its_limit(serve):
    pictures = [picture_of(captioned_meme(base, CAPTION)) for base in BACKGROUNDS[:6]]

    async def ids(server):
        return [await server.ids(each) for each in pictures]

    async def scene(server):
        for number, each in enumerate(pictures):
            await server.record_trial(f"t{number}", each)
            await server.index.catch_up()
        assert len(server.index) <= 5
        return await ids(server)

    assert run_within(serve(most=4), scene) == [[], [], ["t2"], ["t3"], ["t4"], ["t5"]]
    assert run_within(serve(), ids) == [[f"t{number}"] for number in range(6)]
