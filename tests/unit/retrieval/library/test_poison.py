"""Poisoned precedents (DP-1, DP-2), and the safeguards against them."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from court.precedents import MinSimilarity
from court.summary import vote_if_close
from court.verdict import Label
from eval.scores.metrics import harm_values
from retrieval.build import build_library
from retrieval.calibration.calibrate import calibrate, safeguarded_votes
from retrieval.calibration.leave_one_out import leave_one_out_neighbours
from retrieval.embed.builtin import BuiltinEncoder
from retrieval.index.exact import FusedIndex, SegmentedIndex
from retrieval.library.library import Library
from retrieval.library.manifest import LabelledMeme, Safeguards, Tuning
from retrieval.library.sources import Source
from retrieval.precedents.finder import IndexedMemes, LibraryFinder
from retrieval.precedents.search import NEARLY, Query, SearchRequest, _ClusterCap, search_library
from retrieval.text import normalise_text, text_key
from serving.cli.main import cli as memecourt
from tests.support.encoders import WordEncoder
from tests.support.paths import ROOT
from tests.support.sizes import FULL

CLONES = 20
_OPEN: Mapping[str, Any] = {"no_sole_acquittal": False}
_SOLE: Mapping[str, Any] = {"no_sole_acquittal": True}
_CROWDS: Mapping[str, Any] = {"no_sole_acquittal": True, "per_cluster": 1}


def macro_f1_by_flipped(library, share, *, seeds=20):
    """Returns macro-F1 of the vote with the true labels, and with a share of them flipped, for each seed.

    The vote keeps the library's settings, as an attacker flips labels in a library that is already calibrated.
    """
    rows, memes = library.rows, list(library.memes)
    tuning, dim = library.manifest.tuning, library.manifest.encoder.text_dim
    true = np.array([meme.harmful for meme in memes], dtype=np.bool_)

    def macro_f1(voting):
        (neighbours,) = leave_one_out_neighbours(
            rows, voting, dim, alphas=[tuning.alpha], depth=tuning.vote.k + 1, limit=4000, safeguards=tuning.safeguards
        )
        votes = safeguarded_votes(neighbours.similarities, neighbours.harmful, tuning.vote, tuning.safeguards)
        found = votes >= tuning.vote.threshold
        return harm_values(true[neighbours.rows].tolist(), found.tolist())[1]

    figures = []
    for seed in range(seeds):
        flipped = np.random.default_rng(seed).choice(len(memes), max(1, round(share * len(memes))), replace=False)
        voting = list(memes)
        for row in flipped.tolist():
            voting[row] = _relabelled(memes[row], not memes[row].harmful)
        figures.append(macro_f1(voting))
    return macro_f1(memes), figures


def acquitted_by_planted(library, *, trials):
    """Counts how many harmful memes are acquitted because of a poisoned precedent planted for each.

    The poisoned precedent has the meme's words and one more, at a random similarity from identical to barely similar.
    Clones of it differ in spacing and case; variants differ in a word, and slightly in their vectors. The meme and its
    duplicates are left out, and only memes that the vote does not acquit anyway are chosen.
    """
    judged = _Judged(library)
    rng = np.random.default_rng(0)
    harmful = [place for place, meme in enumerate(judged.memes) if meme.harmful]
    found: Counter[str] = Counter()
    done = 0
    while done < trials:
        place = harmful[int(rng.integers(len(harmful)))]
        if _acquitted(judged.precedents_of(place, 0, _OPEN)):
            continue
        vector = _nearby(library, place, rng)
        one, clones = (judged.precedents_of(place, count, _OPEN, vector) for count in (1, CLONES))
        found["one"] += _acquitted(one)
        found["clones"] += _acquitted(clones)
        voices = sum(entry.id.startswith(_POISON) for entry in clones.tally)
        found["clones counted twice"] += voices > 1 or vote_if_close(one) != vote_if_close(clones)
        found["guarded: one"] += _acquitted(judged.precedents_of(place, 1, _SOLE, vector))
        found["guarded: clones"] += _acquitted(judged.precedents_of(place, CLONES, _SOLE, vector))
        variants = np.concatenate([_aside(vector[0], judged.base.text_dim, 0.98, rng) for _ in range(CLONES)])
        found["guarded: variants"] += _acquitted(judged.precedents_of(place, CLONES, _SOLE, variants))
        found["guarded, one of a crowd: variants"] += _acquitted(judged.precedents_of(place, CLONES, _CROWDS, variants))
        done += 1
    return found


def acquittals(library, *, no_sole_acquittal):
    """True for each meme of a library that the others acquit, with nothing poisoned."""
    judged = _Judged(library)
    safeguards = _SOLE if no_sole_acquittal else _OPEN
    return [_acquitted(judged.precedents_of(place, 0, safeguards)) for place in range(len(judged.memes))]


_POISON = "\0poison-"
"""Prefix of planted ids, which no id of a library on disk can have."""


class _Judged:
    """Judges each meme of a library by the others, with poisoned precedents among them."""

    def __init__(self, library):
        self.library, self.memes = library, list(library.memes)
        self.base = FusedIndex(library.rows, library.manifest.encoder.text_dim)
        self._by_words = _groups(self.memes, _words)
        self._by_pixels = _groups(self.memes, lambda meme: meme.pixels_sha256)

    def precedents_of(self, place, poison, safeguards, vectors=None):
        """Finds precedents of a meme with ``poison`` planted ones under these safeguards.

        One vector, of shape (1, dim), plants clones; several plant variants, each with a vector and word of its own.
        """
        meme = self.memes[place]
        duplicates = {place, *self._by_words.get(_words(meme), ()), *self._by_pixels.get(meme.pixels_sha256, ())}
        varied = vectors is not None and len(vectors) > 1
        planted = _variants(meme, poison) if varied else _clones(meme, poison)
        if vectors is not None and not varied:
            vectors = np.tile(vectors, (poison, 1))
        view = _Poisoned(
            self.library,
            self.memes,
            self.base,
            hidden=duplicates,
            planted=planted,
            vectors=vectors,
            safeguards=safeguards,
        )
        return search_library(view, _query(self.library, place, meme), SearchRequest(exhibits=3, tally=25, alpha=None))


class _Poisoned(IndexedMemes):
    """A :class:`~retrieval.library.ports.LibraryView` with some precedents hidden and others planted."""

    def __init__(self, library, memes, base, *, hidden, planted, vectors, safeguards):
        self.library, self._memes, self._planted = library, memes, planted
        segments = [base]
        if vectors is not None:
            segments.append(FusedIndex(np.ascontiguousarray(vectors), base.text_dim))
        self.index = SegmentedIndex(segments, hidden)
        self.harmful = np.array([meme.harmful for meme in (*memes, *planted)], dtype=np.bool_)
        guarded = library.manifest.tuning.safeguards.model_copy(update=dict(safeguards))
        self.tuning: Tuning = library.manifest.tuning.model_copy(
            # No regression: it was fitted on the whole library, including the meme that is left out.
            update={"safeguards": guarded, "regression": None}
        )

        self.identity, self.counts = library.identity, library.counts

    def rows_of(self, ids):
        planted = {meme.id: len(self._memes) + n for n, meme in enumerate(self._planted)}
        known = (planted.get(id_, self.library.row_of(id_)) for id_ in ids)
        return [row for row in known if row is not None]

    def count(self, where):
        return len(self._memes) + len(self._planted)

    def read(self, rows):
        n = len(self._memes)
        return [self._memes[row] if row < n else self._planted[row - n] for row in rows]


def _acquitted(findings):
    vote = vote_if_close(findings)
    return vote is not None and vote.probability < vote.settings.threshold


def _words(meme):
    return text_key(normalise_text(meme.text))


def _groups(memes, key):
    groups: dict[str, list[int]] = {}
    for place, meme in enumerate(memes):
        if key(meme):
            groups.setdefault(key(meme), []).append(place)
    return groups


def _query(library, place, meme):
    dim, row = library.manifest.encoder.text_dim, np.array(library.rows[place])
    return Query(
        text=row[:dim] if meme.has_text else None,
        picture=row[dim:] if meme.has_picture else None,
        text_key=text_key(meme.text),
        pixels_sha256=meme.pixels_sha256,
        text_cut=False,
    )


def _clones(meme, count):
    return [
        _relabelled(meme, False).model_copy(
            update={
                "id": f"{_POISON}{number}",
                "text": f"{meme.text}{' ' * (1 + number)}{'Really' if number % 2 else 'really'}",
                "source": "poison",
                "kept": None,
            }
        )
        for number in range(count)
    ]


def _variants(meme, count):
    """Returns poisoned precedents that are not clones: each has a word of its own."""
    return [
        one.model_copy(update={"text": f"{meme.text} really{number}"})
        for number, one in enumerate(_clones(meme, count))
    ]


def _relabelled(meme, harmful):
    return meme.model_copy(update={"label": Label.HARMFUL if harmful else Label.NOT_HARMFUL})


def _nearby(library, place, rng):
    """Returns a vector with a cosine of at least 0.7 to the meme's in each half, shared by all clones."""
    return _aside(np.array(library.rows[place]), library.manifest.encoder.text_dim, rng.uniform(0.7, 1.0), rng)


def _aside(row, dim, cosine, rng):
    """Returns a vector of shape (1, n) with this cosine to a row in each half."""
    row = row.copy()
    for half in (row[:dim], row[dim:]):
        if half.any():
            aside = rng.normal(size=half.size).astype(np.float32)
            aside -= (aside @ half) * half
            length = float(np.linalg.norm(aside))
            if length > 0:
                half[:] = cosine * half + (1 - cosine**2) ** 0.5 * aside / length
            half /= np.linalg.norm(half)
    return np.ascontiguousarray(row[None])


HARMEME = ROOT.parent / "shared" / "data" / "harmeme"
ENCODER = WordEncoder()
DIM = ENCODER.identity.text_dim


def random_library(root, memes=240, seed=0, safeguards=None, spread=0.25):
    """Builds texts of two kinds around two directions; one label in ten is wrong, as with human annotators."""
    rng = np.random.default_rng(seed)
    rows, labelled = np.zeros((memes, ENCODER.identity.dim), np.float32), []
    centres = np.eye(DIM)[:2]
    for number in range(memes):
        harmful = number % 2 == 0
        row = centres[int(harmful)] + spread * rng.normal(size=DIM)
        rows[number, :DIM] = row / np.linalg.norm(row)
        label = harmful ^ (rng.random() < 0.1)
        labelled.append(meme(f"m{number}", label, f"a meme of number {number}", source="ab"[number % 2]))
    tuning = calibrate(rows, labelled, DIM, MinSimilarity(text=0.3, picture=0.5), safeguards=safeguards)
    return Library.create(root, name="d", encoder=ENCODER.identity, memes=labelled, rows=rows, tuning=tuning)


def meme(id_, harmful, text, **known):
    label = Label.HARMFUL if harmful else Label.NOT_HARMFUL
    return LabelledMeme(id=id_, label=label, text=text, has_text=True, **({"has_picture": False} | known))


def library_of(root, memes, *, safeguards=None):
    rows = np.zeros((len(memes), ENCODER.identity.dim), np.float32)
    rows[:, :DIM] = ENCODER.embed_texts([one.text for one in memes]).vectors
    tuning = calibrate(rows, memes, DIM, MinSimilarity(text=0.3, picture=0.5), safeguards=safeguards)
    return Library.create(root, name="n", encoder=ENCODER.identity, memes=memes, rows=rows, tuning=tuning)


def search(library, text, *, exhibits=3, tally=4, **options):
    finder = LibraryFinder(library, ENCODER)
    try:
        return asyncio.run(
            finder.find(
                text=text, frames=(), pixels_sha256="", exhibits=exhibits, tally=tally, **({"alpha": None} | options)
            )
        )
    finally:
        finder.close()


def ids(findings):
    return [entry.id for entry in findings.tally]


CATS = [meme("cat", False, "cats for everyone", source="s"), meme("dog", True, "dogs for everyone", source="s")]


def test_duplicates_count_once_in_exhibits_and_vote_and_a_note_says_so(tmp_path):
    clones = [meme(f"clone{n}", False, f"Cats  FOR{' ' * n} everyone") for n in range(30)]
    findings = search(library_of(tmp_path, [*clones, *CATS]), "cats for everyone", tally=9)
    assert ids(findings) == ["clone0", "dog"]
    assert [one.id for one in findings.exhibits] == ["clone0", "dog"]
    assert any("clones count once" in note and "30" in note for note in findings.notes)
    assert (
        search(library_of(tmp_path / "b", CATS), "cats").notes == search(library_of(tmp_path / "c", CATS), "cats").notes
    )


def test_watermark_keeps_the_duplicate_key_but_label_and_picture_change_it():
    plain = CATS[0].duplicate_key
    assert plain == meme("x", False, "Cats for everyone made on imgflip.com").duplicate_key
    assert plain != meme("x", True, "cats for everyone").duplicate_key
    assert plain != meme("x", False, "cats for everyone", has_picture=True, pixels_sha256="p").duplicate_key
    assert meme("x", False, "cats for everyone", has_picture=True).duplicate_key is None


def test_both_labels_of_a_duplicated_meme_count_once_each(tmp_path):
    memes = [meme(f"{label}{n}", label == "bad", "cats for everyone") for n in range(4) for label in ("bad", "good")]
    assert ids(search(library_of(tmp_path, memes), "cats for everyone", tally=9)) == ["bad0", "good0"]


def test_one_source_fills_no_more_than_its_share(tmp_path):
    flood = [meme(f"flood{n}", False, f"cats for everyone {n}", source="flood") for n in range(8)]
    library = library_of(tmp_path, [*flood, *CATS], safeguards=Safeguards(per_source=2))
    safeguarded_votes = search(library, "cats for everyone", tally=9)
    assert ids(safeguarded_votes)[0] == "cat" and sum(id_.startswith("flood") for id_ in ids(safeguarded_votes)) == 2
    assert any("of one source, at most 2" in note for note in safeguarded_votes.notes)
    # If all precedents are of one source, the limit does not apply.
    alone = library_of(tmp_path / "alone", flood, safeguards=Safeguards(per_source=2))
    assert len(ids(search(alone, "cats for everyone", tally=9))) == 8


def test_unverified_precedents_are_left_out_once_any_is_verified(tmp_path):
    safeguards = Safeguards(verified_only=True)
    assert set(ids(search(library_of(tmp_path, CATS, safeguards=safeguards), "cats"))) == {"cat", "dog"}
    confirmed = [CATS[0], CATS[1].model_copy(update={"verified": True})]
    safeguarded_votes = search(library_of(tmp_path / "b", confirmed, safeguards=safeguards), "cats for everyone")
    assert ids(safeguarded_votes) == ["dog"] and safeguarded_votes.nearest_benign is None
    assert any("nobody has confirmed" in note for note in safeguarded_votes.notes)
    assert set(ids(search(library_of(tmp_path / "c", confirmed), "cats"))) == {"cat", "dog"}


def test_calibration_sees_the_same_neighbours_as_a_search(tmp_path):
    """Leaving a meme out during calibration finds the neighbours that a search without it finds."""
    memes = [meme(f"m{n}", n % 3 == 0, f"cats {'ab'[n % 2]} {n % 7}", source="ab"[n % 5 == 0]) for n in range(40)]
    library = library_of(tmp_path, memes, safeguards=Safeguards(per_source=3))
    tuning = library.manifest.tuning
    (neighbours,) = leave_one_out_neighbours(
        library.rows, memes, DIM, alphas=[1.0], depth=tuning.vote.k, limit=40, safeguards=tuning.safeguards
    )
    for place, similarities, harmful in zip(
        neighbours.rows.tolist(), neighbours.similarities, neighbours.harmful, strict=True
    ):
        duplicates = {one.id for one in memes if one.text == memes[place].text}
        tally = search(library, memes[place].text, tally=tuning.vote.k, exclude=duplicates).tally
        safeguarded_votes = [(entry.similarity, entry.label is Label.HARMFUL) for entry in tally]
        finite = [(s, h) for s, h in zip(similarities.tolist(), harmful.tolist(), strict=True) if np.isfinite(s)]
        assert [s for s, _ in safeguarded_votes] == pytest.approx([s for s, _ in finite], abs=1e-5)
        assert len(safeguarded_votes) <= 6
    assert neighbours.rows.size == 40


def mean_drop(library, share, seeds=20):
    untouched, flipped = macro_f1_by_flipped(library, share, seeds=seeds)
    return untouched - sum(flipped) / len(flipped)


@pytest.mark.slow
def test_flipped_labels_hardly_affect_the_vote(tmp_path):
    library = random_library(tmp_path)
    assert macro_f1_by_flipped(library, 0.01, seeds=1)[0] > 0.8
    assert mean_drop(library, 0.01) <= 0.01 and mean_drop(library, 0.05) <= 0.04
    # The measure does respond: with half of the labels flipped, the vote is useless.
    assert mean_drop(library, 0.5, seeds=3) > 0.2


@pytest.mark.slow
def test_planted_precedents_do_not_acquit_and_duplicates_count_once(tmp_path):
    acquitted = acquitted_by_planted(random_library(tmp_path / "apart"), trials=1000 if FULL else 250)
    assert acquitted["clones counted twice"] == 0 and acquitted["clones"] == acquitted["one"]
    assert acquitted["guarded: one"] == acquitted["guarded: clones"] == 0
    # A cluster of near-duplicates does not acquit with a single vote; with a vote each, it does.
    assert acquitted["guarded, one of a crowd: variants"] == 0 < acquitted["guarded: variants"]
    # With closer labels, one precedent can acquit without the safeguard; otherwise its zeros would prove nothing.
    mixed = acquitted_by_planted(random_library(tmp_path / "mixed", spread=0.4), trials=100)
    assert mixed["clones"] == mixed["one"] > 0 == mixed["guarded: one"] == mixed["guarded: clones"]


def test_near_duplicates_are_limited_per_cluster_and_label(tmp_path):
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    long = f"{long} {long}"
    cluster = [meme(f"crowd{n}", n >= 20, f"{long} {'abcdefghijklmnopqrstuvwxyz'[n]}") for n in range(24)]
    others = [meme(f"other{n}", n % 2 == 0, f"zebra umbrella quartz {n}") for n in range(12)]
    memes = [*cluster, *others]
    rows = ENCODER.embed_texts([one.text for one in cluster]).vectors
    assert (rows @ rows.T).min() >= NEARLY and not any(a.text == b.text for a in cluster for b in cluster if a is not b)
    everybody = ids(search(library_of(tmp_path / "all", memes), long, tally=30))
    assert sum(id_.startswith("crowd") for id_ in everybody) == 24
    for most in (1, 3):
        findings = search(
            library_of(tmp_path / str(most), memes, safeguards=Safeguards(per_cluster=most)), long, tally=30
        )
        safeguarded_votes = ids(findings)
        # The nearest of each label remain, and no other precedent is left out.
        benign = [id_ for id_ in everybody if id_ in {f"crowd{n}" for n in range(20)}]
        harmful = [id_ for id_ in everybody if id_ in {f"crowd{n}" for n in range(20, 24)}]
        assert [id_ for id_ in safeguarded_votes if id_ in benign] == benign[:most]
        assert [id_ for id_ in safeguarded_votes if id_ in harmful] == harmful[:most]
        assert {id_ for id_ in safeguarded_votes if id_.startswith("other")} == {one.id for one in others}
        assert any(f"at most {most} are heard" in note and str(24 - 2 * most) in note for note in findings.notes)


@pytest.mark.slow
def test_calibration_predicts_the_effect_of_the_safeguard_on_trials(tmp_path):
    library = random_library(tmp_path / "l", safeguards=Safeguards(no_sole_acquittal=True), spread=0.6)
    harmful = np.array([one.harmful for one in library.memes])
    plain, guarded = (np.array(acquittals(library, no_sole_acquittal=sole)) for sole in (False, True))
    # The safeguard only ever acquits less.
    assert not (guarded & ~plain).any() and (plain & ~guarded & ~harmful).any()
    # Calibration's estimate of the vote agrees with the outcome of searches.
    tuning = library.manifest.tuning
    (neighbours,) = leave_one_out_neighbours(
        library.rows,
        library.memes,
        DIM,
        alphas=[tuning.alpha],
        depth=tuning.vote.k + 1,
        limit=len(library.memes),
        safeguards=tuning.safeguards,
    )
    predicted = (
        safeguarded_votes(neighbours.similarities, neighbours.harmful, tuning.vote, tuning.safeguards)
        >= tuning.vote.threshold
    )
    assert float(np.mean(predicted == neighbours.labels)) == pytest.approx(np.mean(guarded != harmful), abs=0.01)


def test_libraries_are_built_with_the_requested_safeguards(tmp_path):
    (tmp_path / "memes.csv").write_text("id,label,text\n" + "".join(f"m{n},{n % 2},cake {n}\n" for n in range(30)))
    for options, guarded in (
        ([], Safeguards(per_cluster=1, sources=1)),
        (["--no-sole-acquittal", "--per-cluster", "0"], Safeguards(no_sole_acquittal=True, sources=1)),
    ):
        place = tmp_path / f"l{len(options)}"
        built = CliRunner().invoke(
            memecourt, ["precedents", "build", str(place), str(tmp_path / "memes.csv"), *options]
        )
        assert built.exit_code == 0, built.output
        assert Library.open(place, None).manifest.tuning.safeguards == guarded


def test_sole_acquitting_precedent_is_left_out_and_named(tmp_path):
    guarded = Safeguards(no_sole_acquittal=True)
    bad = [meme(f"bad{n}", True, f"kick them all out of town {n}") for n in range(2)]
    good = [meme(f"good{n}", False, f"zebra umbrella quartz {n}") for n in range(12)]
    poison = [meme(f"poison{n}", False, "kick them all out") for n in range(3)]
    memes = [*bad, *good, *poison]
    open_ = search(library_of(tmp_path / "b", memes), "kick them all out", tally=25)
    shut = search(library_of(tmp_path / "c", memes, safeguards=guarded), "kick them all out", tally=25)
    assert "poison0" in ids(open_)
    assert not any(id_.startswith("poison") for id_ in ids(shut))
    assert any("poison0 was left out" in note for note in shut.notes)


@pytest.mark.promise("DP-1", "1 % and 5 % of labels flipped on HarMeme: at most 1 and 4 points")
@pytest.mark.skipif(not FULL, reason="a minute for each, at night")
@pytest.mark.parametrize("name", ["Harm-C", "Harm-P"])
def test_safeguards_hold_on_real_annotations(tmp_path, name):
    train = HARMEME / name / "train.jsonl"
    if not train.is_file():
        pytest.skip("the annotations of HarMeme are missing")
    library, _ = asyncio.run(build_library(tmp_path / "l", [Source(train)], name=name, encoder=BuiltinEncoder()))
    # The bounds that docs/security.md states.
    assert mean_drop(library, 0.01, seeds=4) <= 0.01 and mean_drop(library, 0.05, seeds=4) <= 0.04
    acquitted = acquitted_by_planted(library, trials=10)
    assert acquitted["clones counted twice"] == 0
    assert acquitted["guarded: one"] == acquitted["guarded: clones"] == 0


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths, lengths, 1)).astype(np.float32)


def random_rows(rng, n):
    """Text and picture vectors of a few kinds each, some of them missing."""
    halves = []
    for dim in (6, 9):
        kinds = np.concatenate([np.zeros((1, dim)), rng.normal(size=(3, dim))])
        rows = kinds[rng.integers(len(kinds), size=n)]
        halves.append(unit(rows + 0.02 * rng.normal(size=rows.shape) * rows.any(axis=1, keepdims=True)))
    return *halves, rng.random(n) < 0.5


def is_near_duplicate(one, other):
    return (not one.any() and not other.any()) or float(one @ other) >= NEARLY


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_batches_give_the_same_choice_as_pairwise_comparison(seed, most):
    rng = np.random.default_rng(seed)
    texts, pictures, harmful = random_rows(rng, 60)
    chosen: list[int] = []
    for row in range(60):
        duplicates = [
            other
            for other in chosen
            if harmful[other] == harmful[row]
            and is_near_duplicate(texts[other], texts[row])
            and is_near_duplicate(pictures[other], pictures[row])
        ]
        if len(duplicates) < most:
            chosen.append(row)
    assert 0 < len(chosen) < 60

    cap, found = _ClusterCap(most), []
    for start, end in ((0, 25), (25, 26), (26, 60)):
        cap.scan(texts[start:end], pictures[start:end])
        for row in range(start, end):
            if not cap.full(row - start, bool(harmful[row])):
                cap.join(row - start, bool(harmful[row]))
                found.append(row)
    assert found == chosen
