"""The built-in encoder of texts and pictures."""

import asyncio
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from court.backends.onnx import NO_REPORTS
from court.errors import NotLoaded
from court.events import TextRead, TextSource
from court.policy import DEFAULT_POLICY
from court.precedents import VoteSettings
from court.settings import TrialSettings
from court.summary import vote_if_close, weigh
from court.verdict import Label, ReviewReason
from retrieval.embed import builtin, descriptor
from retrieval.embed.builtin import BuiltinEncoder
from retrieval.library.library import Library
from retrieval.library.manifest import Calibration, LabelledMeme, Tuning
from retrieval.precedents.finder import LibraryFinder
from tests.support.encoders import png_of
from tests.support.paths import TESTS

BY_PYTORCH = TESTS / "fixtures" / "pytorch_library"


@pytest.fixture(scope="session")
def encoder():
    return BuiltinEncoder()


def test_equal_texts_have_equal_vectors(encoder):
    found = encoder.embed_texts(["a cat on a mat", "something else that is rather longer", "a cat on a mat"])
    assert found.vectors.shape == (3, 384) and found.vectors.dtype == np.float32
    assert np.array_equal(found.vectors[0], found.vectors[2])
    assert np.linalg.norm(found.vectors, axis=1) == pytest.approx(1, abs=1e-5)
    alone = encoder.embed_texts(["A CAT on a  mat @somebody"]).vectors[0]
    assert alone == pytest.approx(found.vectors[0], abs=1e-5)


def test_vector_of_a_text_does_not_depend_on_its_batch(encoder):
    texts = [" ".join(["river", "stone", "bread", "Monday"][n % 4] for n in range(length)) for length in range(1, 24)]
    alone = [encoder.embed_texts([one]).vectors[0] for one in texts]
    for threads, step in ((1, 1), (3, 7)):
        shuffled = [texts[step * n % len(texts)] for n in range(len(texts))]
        found = BuiltinEncoder(threads=threads).embed_texts(shuffled).vectors
        for text, vector in zip(shuffled, found, strict=True):
            assert np.array_equal(vector, alone[texts.index(text)]), text


def test_vectors_match_those_of_pytorch(encoder):
    """docs/libraries.md states the tolerance for libraries that were embedded by another program."""
    library = Library.open(BY_PYTORCH, encoder.identity)
    ours = encoder.embed_texts([meme.text for meme in library.memes]).vectors
    theirs = np.stack([library.vector_of(library.row_of(meme.id) or 0) for meme in library.memes])
    theirs = theirs[:, : encoder.identity.text_dim]
    assert ours.any(axis=1).all() and np.abs(ours - theirs).max() <= 1e-6


def test_meme_embedding_equals_its_text_and_picture_embeddings(encoder):
    frames = [png_of((200, 0, 0)), png_of((0, 0, 200))]
    for text in ("a cat", "", "word " * 300):
        for own in (frames, []):
            texts, pictures = encoder.embed_meme(text, own)
            halves = encoder.embed_texts([text])
            assert np.array_equal(texts.vectors, halves.vectors) and texts.cut == halves.cut
            assert pictures is None if not own else np.array_equal(pictures, encoder.embed_pictures([own]))


def test_paraphrase_is_more_similar_than_another_subject(encoder):
    first, paraphrase, other = encoder.embed_texts(
        ["The train was late again this morning.", "Once more my train came late today.", "Fold the egg whites in."]
    ).vectors
    assert first @ paraphrase > encoder.floors.text > first @ other


def test_empty_text_has_a_zero_vector(encoder):
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
def test_text_in_an_unsupported_script_has_a_zero_vector(encoder, text):
    assert not encoder.embed_texts([text]).vectors.any()
    assert encoder.embed_texts([f"{text} people from Blueland should not come here, says my neighbour"]).vectors.any()


@pytest.mark.parametrize("text", ["Leute aus Blauland", "niño, café, naïve", "50% + 20", "!", "so tired 😂😂😂"])
def test_accents_numbers_signs_and_emoji_are_embedded(encoder, text):
    assert encoder.embed_texts([text]).vectors.any()


def test_texts_are_truncated_to_256_tokens_and_marked(encoder):
    assert encoder.identity.text_tokens == 256
    # Two of the tokens mark start and end.
    just, over, long = "word " * 254, "word " * 255, "word " * 300
    found = encoder.embed_texts([just, over, "short", long])
    assert found.cut == (False, True, False, True)
    assert found.vectors[0] == pytest.approx(found.vectors[3], abs=1e-5)


def test_identity_changes_with_weights_and_rules(encoder, monkeypatch):
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


def test_picture_vector_is_the_mean_direction_of_its_frames(encoder):
    red, blue = png_of((200, 0, 0)), png_of((0, 0, 200))
    one, other, both = encoder.embed_pictures([[red], [blue], [red, blue]])
    assert both == pytest.approx((one + other) / np.linalg.norm(one + other), abs=1e-5)
    assert np.linalg.norm(both) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="picture 1 has no frame"):
        encoder.embed_pictures([[red], []])


def test_threads_can_share_the_encoder(encoder):
    texts = [f"number {i} of the lines " * (1 + i % 5) for i in range(24)]
    alone = encoder.embed_texts(texts).vectors
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: encoder.embed_texts([one]).vectors[0], texts))
    assert np.array(together) == pytest.approx(alone, abs=1e-5)


def test_encoder_uses_no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert BuiltinEncoder().embed_texts(["word"]).vectors.any()


@pytest.mark.slow
def test_loading_is_silent_needs_no_pytorch_and_changes_only_the_telemetry_variable():
    code = (
        "import os; before = dict(os.environ)\n"
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'sentence_transformers']))\n"
        "from retrieval.embed.builtin import BuiltinEncoder\n"
        "assert BuiltinEncoder().embed_texts(['word ' * 300]).vectors.any()\n"
        "print({k for k in os.environ.keys() | before.keys() if os.environ.get(k) != before.get(k)})"
    )
    # Without what an earlier test of this process may have set.
    environment = {name: value for name, value in os.environ.items() if name not in NO_REPORTS}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    assert done.stdout == f"{set(NO_REPORTS)}\n"


def test_missing_dependency_error_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NotLoaded, match=r"tokenizers.*pip install 'memecourt\[server\]'"):
        BuiltinEncoder()


@pytest.mark.parametrize("text", ["คนจากเมืองสีฟ้าไม่ควรมาที่นี่", "\u200b\u200d", "\ufeff"])
def test_unreadable_text_is_undecided_despite_unreadable_precedents(encoder, tmp_path, text):
    """In libraries of earlier versions all texts without a readable word share one vector."""
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
    found = asyncio.run(finder.find(text=text, frames=[], pixels_sha256="", exhibits=3, tally=3, alpha=None))
    finder.close()
    assert found.text_not_understood and not found.exhibits
    read = TextRead(trial_id="t", seq=1, at="2026-01-01T00:00:00Z", text=text, source=TextSource.CALLER)
    verdict = weigh(found, vote_if_close(found), read, TrialSettings(), policy=DEFAULT_POLICY)
    assert verdict.label is Label.UNDECIDED
    assert {review.reason for review in verdict.review} >= {ReviewReason.TEXT_NOT_UNDERSTOOD}
