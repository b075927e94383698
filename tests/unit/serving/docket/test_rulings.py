"""Tests of overrulings that become precedents, in a real library on disk."""

import asyncio
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest

from court.errors import BadRequest
from court.events import MemeIdentity, ReviewOutcome, TrialOpened, VerdictReviewed
from court.policy import DEFAULT_POLICY
from court.record import TrialRecord
from court.verdict import Label
from retrieval.library.changes import ChangeKind, NoSuchPrecedent
from retrieval.library.writer import LibraryWriter
from serving.docket.errors import TrialErased
from serving.docket.review.corrections import Corrections, Overrulings, forget, policy_of
from tests.support.desks import trial, verdict
from tests.support.dockets import NOON
from tests.support.encoders import picture_of, png_of
from tests.support.libraries import ENCODER, drawn_library

H, N = Label.HARMFUL, Label.NOT_HARMFUL
PNG = png_of((5, 250, 5), (5, 5, 250))
PICTURE = picture_of(PNG)


class Docket:
    """Has one picture and the record of one trial, or None once that is erased."""

    stored: TrialRecord | None = None

    async def record(self, trial_id):
        if self.stored is None:
            raise TrialErased("erased")
        return self.stored

    async def frames(self, pixels_sha256):
        return [frame.png for frame in PICTURE.frames] if pixels_sha256 == PICTURE.pixels_sha256 else []


class Court:
    """A library, its writer, and the corrections that turn rulings into precedents."""

    def __init__(self, root, overrulings=Overrulings.CHOSEN):
        self.root = root
        self.writer = LibraryWriter(drawn_library(root, 5, 12))
        self.rulings = Corrections(lambda: nullcontext(self.writer), lambda: ENCODER, Docket(), overrulings)
        self.docket = self.rulings._trials

    def follow(self, label=N, *, reason="Satire of a habit.", chosen=True, ended=H, **options):
        record, review = a_review(label, reason=reason, ended=ended, **options)
        self.docket.stored = record
        return asyncio.run(self.rulings.follow(record, review, chosen=chosen))

    def meme(self):
        return asyncio.run(self.rulings.of("t"))

    @property
    def kinds(self):
        return [recorded.change.kind for recorded in self.writer.history("trial:t")]


def a_review(label, *, reason="Satire of a habit.", ended=H, clause="4", words="cat dog", pixels=PICTURE.pixels_sha256):
    events = trial("t", verdict(ended), words=words, namespace="forum", pixels=pixels)
    opened = events[0]
    assert isinstance(opened, TrialOpened)
    meme = MemeIdentity(
        bytes_sha256="a" * 64, pixels_sha256=pixels, format="PNG", width=PICTURE.width, height=PICTURE.height,
        frame_count=1, frames_used=(0,), namespace="forum", content_id="c",
    )  # fmt: skip
    policy = opened.policy.model_copy(update={"id": DEFAULT_POLICY.id, "digest": DEFAULT_POLICY.digest})
    events[0] = opened.model_copy(update={"meme": meme, "policy": policy})
    outcome = ReviewOutcome.UPHELD if label is ended else ReviewOutcome.OVERRULED
    values = {"outcome": outcome, "label": label, "reason": reason, "clause": clause, "reviewer": "ada"}
    review = VerdictReviewed(trial_id="t", seq=len(events), at=NOON, **values)
    return TrialRecord.of([*events, review]), review


@pytest.fixture
def court(tmp_path):
    return Court(tmp_path / "library")


def test_overruling_becomes_a_precedent_that_names_its_origin(court):
    change = court.follow(H, ended=N)
    meme = court.meme()
    assert (meme.id, meme.source, meme.label, meme.text) == ("trial:t", "trial:t", H, "cat dog")
    assert (meme.verified, meme.who, meme.namespace, meme.policy) == (True, "ada", "forum", DEFAULT_POLICY.id)
    assert meme.categories == ("nationality",)  # category of clause 4
    assert meme.pixels_sha256 == PICTURE.pixels_sha256 and meme.kept is not None
    assert change.why == "NOT_HARMFUL was overruled: Satire of a habit." and change.who == "ada"


@pytest.mark.parametrize(
    ("overrulings", "chosen", "expected"),
    [
        (Overrulings.NEVER, True, False),
        (Overrulings.CHOSEN, False, False),
        (Overrulings.CHOSEN, True, True),
        (Overrulings.ALWAYS, False, True),
    ],
)
def test_overrulings_become_precedents_as_the_setting_says(tmp_path, overrulings, chosen, expected):
    court = Court(tmp_path / "library", overrulings)
    assert (court.follow(chosen=chosen) is not None) is expected
    assert (court.meme() is not None) is expected


def test_upholding_removes_the_precedent_and_overruling_again_restores_it(court):
    assert court.follow(H) is None  # upheld, with no precedent to remove
    court.follow(N)
    court.follow(H, reason="It does shut people out.")
    assert court.meme() is None
    court.follow(N, reason="After all.")
    assert court.meme().label is N
    assert court.kinds == [ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.REVOKE]
    assert [recorded.change.why for recorded in court.writer.history("trial:t")] == [
        "HARMFUL was overruled: Satire of a habit.",
        "The verdict was upheld: It does shut people out.",
        "HARMFUL was overruled: After all.",
    ]


def test_later_finding_changes_the_label_of_the_precedent(court):
    court.follow(H, ended=Label.UNDECIDED)
    court.follow(N, ended=Label.UNDECIDED, chosen=False)  # a precedent must not keep an overruled label
    assert court.meme().label is N
    assert court.follow(N, ended=Label.UNDECIDED) is None
    court.follow(Label.UNDECIDED, ended=Label.UNDECIDED)
    assert court.meme() is None
    court.follow(H, ended=Label.UNDECIDED)  # restored, with the other label
    assert court.meme().label is H


@pytest.mark.parametrize("last", ["upheld", "the other label", "erased"])
def test_library_follows_the_last_review_whichever_is_handled_last(court, last):
    """Another review or an erasure is stored before the library has followed this one."""
    record, review = a_review(N, words="a very particular text", ended=Label.UNDECIDED)
    later = None
    if last != "erased":
        label = Label.UNDECIDED if last == "upheld" else H
        outcome = ReviewOutcome.UPHELD if last == "upheld" else ReviewOutcome.OVERRULED
        later_review = review.model_copy(update={"seq": review.seq + 1, "label": label, "outcome": outcome})
        later = TrialRecord.of([*record.events, later_review])
        court.docket.stored = later
        asyncio.run(court.rulings.follow(later, later_review, chosen=False))
    court.docket.stored = later
    asyncio.run(court.rulings.follow(record, review, chosen=True))
    assert getattr(court.meme(), "label", None) == {"the other label": H}.get(last)
    if last == "erased":
        files = [path.read_bytes() for path in court.writer.library.root.rglob("*") if path.is_file()]
        assert b"particular" not in b"".join(files)


async def test_two_concurrent_overrulings_make_one_precedent(court, monkeypatch):
    record, review = a_review(N)
    court.docket.stored = record
    both, first = threading.Barrier(2), iter(range(2))
    meme = court.writer.meme

    def together(id_):
        found = meme(id_)
        if next(first, None) is not None:
            both.wait(60)  # both have found no precedent
        return found

    monkeypatch.setattr(court.writer, "meme", together)
    changes = await asyncio.gather(*(court.rulings.follow(record, review, chosen=True) for _ in range(2)))
    assert sorted(change is None for change in changes) == [False, True]
    assert court.kinds == [ChangeKind.ADD]


def test_precedent_of_an_overruling_can_be_taken_back(court):
    court.follow(N)
    with pytest.raises(BadRequest, match="Say why"):
        asyncio.run(court.rulings.take_back("t", who="root", why=" "))
    change = asyncio.run(court.rulings.take_back("t", who="root", why="Too special."))
    assert court.meme() is None and (change.kind, change.who) == (ChangeKind.REMOVE, "root")
    with pytest.raises(NoSuchPrecedent):
        asyncio.run(court.rulings.take_back("t", who="root", why="Too special."))
    court.writer.revoke(change.number, who="root", why="It was not.")
    assert court.meme().label is N


def test_meme_without_a_stored_picture_is_a_precedent_by_its_text(court):
    court.follow(N, pixels="0" * 64)
    assert (court.meme().has_text, court.meme().has_picture) == (True, False)


def test_meme_without_text_and_picture_becomes_no_precedent(court):
    with pytest.raises(BadRequest, match="can read"):
        court.follow(N, words="", pixels="0" * 64)


def test_long_reasons_are_truncated_to_fit(court):
    assert len(court.follow(N, reason="x" * 2000).why) == 2000


def test_erased_trial_is_gone_from_the_library_and_its_history(court):
    court.follow(N, words="a very particular text", pixels="0" * 64)
    root = court.writer.library.root
    assert b"a very particular text" in b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    open_writer = lambda: nullcontext(court.writer)  # noqa: E731
    assert asyncio.run(forget(open_writer, "t", who="root", why="erased"))
    assert not asyncio.run(forget(open_writer, "another", who="root", why="erased"))
    assert court.meme() is None
    remaining = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert b"particular" not in remaining and PICTURE.pixels_sha256.encode() not in remaining


def test_policy_of_a_trial_is_found_by_its_digest():
    record, _ = a_review(N)
    assert policy_of(record) is DEFAULT_POLICY
    opened = record.opened.model_copy(update={"policy": record.opened.policy.model_copy(update={"digest": "sha256:1"})})
    assert policy_of(replace(record, events=(opened, *record.events[1:]))) is None
