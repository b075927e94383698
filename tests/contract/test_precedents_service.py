"""The contract of memecourt.v1.Precedents over a real channel, for a library on disk and one in PostgreSQL."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadLibrary, Unavailable
from court.verdict import Label
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import PrecedentsStub
from retrieval.library import journal, storage
from retrieval.library.changes import ChangeKind
from retrieval.library.library import Library
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.push import push_library
from retrieval.library.writer import LibraryWriter
from retrieval.open import open_writer
from retrieval.precedents.finder import LibraryFinder, follow
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.access.callers import Caller, Scope
from serving.judging.decode import DecodingPool, Quarantine
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.precedents import PrecedentsService
from tests.support.encoders import PlainPictureReader, picture_of, png_of
from tests.support.fakes import FakeFinder, H, findings
from tests.support.libraries import ENCODER, EPOCH, PICTURES, TUNING, drawn_library, drawn_meme
from tests.support.playing import run_within, until
from tests.support.service_calls import Refusal, caller_metadata, refusal_of, running_services

T = TypeVar("T")

TIMEOUT = 60
ADMIN = frozenset({Scope.ADMIN, Scope.JUDGE})
CALLERS = {
    "ada": Caller("ada", ADMIN),
    "forum": Caller("forum", ADMIN, frozenset({"forum", "blog"})),
    "shop": Caller("shop", ADMIN, frozenset({"shop"})),
}
MADE_BY = {"who": "ada", "why": "as was decided"}
OF_ONE = (("forum", "p1", True), ("forum", "", False), ("blog", "p2", True), ("shop", "p1", True), ("", "p2", False))
"""Namespace, policy and verification of the memes ``of-0``, ``of-1`` and so on."""
PICTURE = png_of((250, 5, 5), (5, 250, 5), (5, 5, 250))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Forty memes of a data set, and five of namespaces."""
    library = drawn_library(tmp_path_factory.mktemp("drawn"), 7, 40)
    writer, draw = LibraryWriter(library), random.Random(3)
    for number, (namespace, policy, verified) in enumerate(OF_ONE):
        meme, vector, _ = drawn_meme(draw, f"of-{number}")
        text = f"sings {number}"
        vector[:16] = ENCODER.embed_texts([text]).vectors[0]
        known = {"text": text, "has_text": True, "namespace": namespace, "policy": policy, "verified": verified}
        writer.add(meme.model_copy(update=known), vector, None, **MADE_BY)
    return writer.library


@pytest.fixture(params=["disk", "database"])
def place(request, tmp_path, drawn):
    """A library of the test's own."""
    if request.param == "disk":
        return copied(drawn, tmp_path)
    address: Address = request.getfixturevalue("database")
    push_library(drawn, address)
    return address


@pytest.fixture
def on_disk(tmp_path, drawn):
    return copied(drawn, tmp_path)


def copied(library, to):
    import shutil

    shutil.copytree(library.root, to / "library")
    return to / "library"


@dataclass
class Scene:
    """A library that is searched and changed, with its service."""

    place: Path | Address
    service: PrecedentsService
    channel: grpc.aio.Channel

    def __post_init__(self):
        self.stub = PrecedentsStub(self.channel)

    async def found(self, caller="", **fields):
        request = wire.SearchPrecedentsRequest(**{"text": "cat", **fields})
        answer: wire.SearchPrecedentsResponse = await self.stub.SearchPrecedents(
            request, timeout=TIMEOUT, metadata=caller_metadata(caller)
        )
        return answer

    async def ids(self, caller="", **fields):
        """Returns the ids of all precedents found."""
        return [one.id for one in (await self.found(caller, k=1000, **fields)).precedents]

    async def added(self, caller="", **fields):
        defaults = {"id": "new", "text": "quite unheard of", "label": wire.LABEL_HARMFUL, "why": "as was decided",
                 "who": "" if caller else "bea"}  # fmt: skip
        request = wire.AddPrecedentRequest(**{**defaults, **fields})
        answer: wire.AddPrecedentResponse = await self.stub.AddPrecedent(
            request, timeout=TIMEOUT, metadata=caller_metadata(caller)
        )
        return answer

    async def removed(self, id_, caller="", **fields):
        defaults = {"why": "it is out of date", "who": "" if caller else "bea"}
        request = wire.RemovePrecedentRequest(id=id_, **{**defaults, **fields})
        return int((await self.stub.RemovePrecedent(request, timeout=TIMEOUT, metadata=caller_metadata(caller))).change)

    async def relabelled(self, id_, label, caller="", **fields):
        defaults = {"why": "it was wrong", "who": "" if caller else "bea"}
        request = wire.RelabelPrecedentRequest(id=id_, label=label, **{**defaults, **fields})
        return int(
            (await self.stub.RelabelPrecedent(request, timeout=TIMEOUT, metadata=caller_metadata(caller))).change
        )

    async def library(self):
        answer: wire.GetLibraryResponse = await self.stub.GetLibrary(wire.GetLibraryRequest(), timeout=TIMEOUT)
        return answer

    def history(self, *ids):
        with open_writer(self.place) as writer:
            return writer.history(*ids)

    def meme(self, id_):
        with open_writer(self.place) as writer:
            return writer.meme(id_)


@asynccontextmanager
async def a_scene(place, *, pictures=None, finder=None):
    own = finder is None
    following = None
    if isinstance(place, Address):
        finder = finder or await PgvectorFinder.open(place, ENCODER)
    elif own:
        finder = LibraryFinder(Library.open(place, ENCODER.identity), ENCODER)
        following = asyncio.create_task(follow(finder, lambda _: None, every_s=0.02))
    service = PrecedentsService(ReceiveBudget(64 * 2**20, 20.0))
    executor = SimpleNamespace(court=SimpleNamespace(finder=finder), pictures=pictures or PlainPictureReader())
    service.open(executor, DecodingPool(executor.pictures, Quarantine(None), 2))  # type: ignore[arg-type]
    try:
        async with running_services(
            service.handler(), callers=CALLERS, options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            yield Scene(place, service, channel)
        service.close()
        await service.empty(5)
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if own:
            finder.close()


def play(place, work, **options):
    return run_within(a_scene(place, **options), work)


async def test_the_nearest_precedents_are_returned_with_all_their_fields(place, drawn):
    picture = PICTURES[1] or b""
    async with a_scene(place) as it:
        both, text, image, all_text, no_text = [
            await it.found(text="cat bird", image=picture, k=5),
            await it.found(text="cat bird", k=5),
            await it.found(text="", image=picture, k=5),
            await it.found(text="cat bird", image=picture, k=5, alpha=1.0),
            await it.found(text="cat bird", image=picture, alpha=0.0),
        ]
    memes = {meme.id: meme for meme in drawn.memes}
    for answer in (both, text, image, all_text, no_text):
        assert len(answer.precedents) == (10 if answer is no_text else 5)
        assert (answer.library.name, answer.library.digest, answer.library.size) == ("drawn", drawn.digest, 45)
        scores = [one.similarity for one in answer.precedents]
        assert scores == sorted(scores, reverse=True)
        for one in answer.precedents:
            meme = memes[one.id]
            assert (one.text, one.source, tuple(one.categories)) == (meme.text, meme.source, meme.categories)
            assert wire.Label.Name(one.label) == f"LABEL_{meme.label}"
    assert [answer.alpha for answer in (both, text, image, all_text, no_text)] == [TUNING.alpha, 1.0, 0.0, 1.0, 0.0]
    best = both.precedents[0]
    assert best.similarity == pytest.approx(
        TUNING.alpha * best.text_similarity + (1 - TUNING.alpha) * best.picture_similarity, abs=1e-6
    )
    assert any("no picture" in note for note in text.notes)
    assert not any(one.HasField("picture_similarity") for one in text.precedents)
    assert text.precedents[0].text == "cat bird"
    assert text.precedents[0].relation == wire.RELATION_SAME_TEXT
    assert image.precedents[0].relation in (wire.RELATION_SAME_PICTURE, wire.RELATION_SIMILAR)
    assert image.precedents[0].picture_similarity == pytest.approx(1)


async def test_excluded_precedents_and_duplicates_are_left_out(place):
    async with a_scene(place) as it:
        everything = await it.ids()
        left_out = await it.found(k=1000, exclude=[everything[0], everything[3], "no such id"])
        found = [one.id for one in left_out.precedents]
        assert not {everything[0], everything[3]} & set(found)
        assert any("left out on purpose" in note for note in left_out.notes)
        twins = {one.id for one in (await it.found(k=1000)).precedents if one.relation == wire.RELATION_SAME_TEXT}
        assert twins
        assert not twins & set(await it.ids(leave_out_duplicates=True))


def matches(precedent_filter, meme):
    """Implements the filter's contract in the simplest way."""
    if meme.added is None and (precedent_filter.HasField("since") or precedent_filter.HasField("until")):
        return False
    return (
        (not precedent_filter.sources or meme.source in precedent_filter.sources)
        and (not precedent_filter.splits or meme.split in precedent_filter.splits)
        and (not precedent_filter.namespaces or meme.namespace in precedent_filter.namespaces)
        and (not precedent_filter.languages or meme.language in precedent_filter.languages)
        and (not precedent_filter.policies or meme.policy in precedent_filter.policies)
        and (not precedent_filter.HasField("since") or (meme.added or EPOCH) >= precedent_filter.since.ToDatetime(UTC))
        and (not precedent_filter.HasField("until") or (meme.added or EPOCH) < precedent_filter.until.ToDatetime(UTC))
        and (meme.verified or not precedent_filter.verified)
    )


def stamp(at):
    stamped = Timestamp()
    stamped.FromDatetime(at)
    return stamped


FILTERS = (
    {"sources": ["first"]},
    {"sources": ["second", "third"]},
    {"splits": ["train"]},
    {"splits": [""]},
    {"namespaces": ["forum"]},
    {"namespaces": ["shop", "blog"]},
    {"namespaces": [""]},
    {"languages": ["de"]},
    {"languages": ["", "en"]},
    {"policies": ["p1"]},
    {"policies": ["p1", "p2"], "verified": True},
    {"since": stamp(EPOCH + timedelta(days=12))},
    {"until": stamp(EPOCH + timedelta(days=12))},
    {"since": stamp(EPOCH + timedelta(days=5)), "until": stamp(EPOCH + timedelta(days=20))},
    {"verified": True},
    {"sources": ["first"], "languages": ["en"], "splits": ["train"]},
    {"policies": ["nowhere"]},
)


async def test_filters_return_exactly_the_matching_precedents(place, drawn):
    def identity_of(meme):
        return meme.duplicate_key or meme.id  # of duplicates the nearest is found

    async with a_scene(place) as it:
        memes = {meme.id: meme for meme in drawn.memes}
        hits = 0
        for fields in FILTERS:
            precedent_filter = wire.PrecedentFilter(**fields)  # type: ignore[arg-type]
            expected = [meme for meme in memes.values() if matches(precedent_filter, meme)]
            answer = await it.found(k=1000, filter=precedent_filter)
            found = [memes[one.id] for one in answer.precedents]
            assert all(matches(precedent_filter, meme) for meme in found), fields
            assert {identity_of(meme) for meme in found} == {identity_of(meme) for meme in expected}, fields
            assert f"Only {len(expected)} of 45 precedents were searched, as was asked for." in answer.notes
            hits += len(found)
        assert hits > 60


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": ""}, ("INVALID_ARGUMENT", "NOTHING_TO_COMPARE", "text")),
        ({"text": " \n"}, ("INVALID_ARGUMENT", "NOTHING_TO_COMPARE", "text")),
        ({"text": "x" * 10_001}, ("INVALID_ARGUMENT", "TEXT_TOO_LONG", "text")),
        ({"image": b"no picture"}, ("INVALID_ARGUMENT", "NOT_A_PICTURE", "image")),
        ({"k": -1}, ("INVALID_ARGUMENT", "OUT_OF_RANGE", "k")),
        ({"k": 1001}, ("INVALID_ARGUMENT", "OUT_OF_RANGE", "k")),
        ({"alpha": -0.01}, ("INVALID_ARGUMENT", "OUT_OF_RANGE", "alpha")),
        ({"alpha": 1.01}, ("INVALID_ARGUMENT", "OUT_OF_RANGE", "alpha")),
        ({"alpha": float("nan")}, ("INVALID_ARGUMENT", "OUT_OF_RANGE", "alpha")),
        ({"alpha": float("inf")}, ("INVALID_ARGUMENT", "OUT_OF_RANGE", "alpha")),
        ({"exclude": ["x"] * 10_001}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "exclude")),
        ({"exclude": ["x" * 201]}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "exclude")),
        ({"filter": {"sources": ["x"] * 1001}}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "filter.sources")),
        ({"filter": {"policies": ["x" * 257]}}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "filter.policies")),
        ({"filter": {"splits": ["\0"]}}, ("INVALID_ARGUMENT", "FIELD_HOLDS_NUL", "filter.splits")),
        ({"filter": {"languages": ["english, please"]}}, ("INVALID_ARGUMENT", "BAD_LANGUAGE", "filter.languages")),
        ({"filter": {"since": Timestamp(seconds=-(2**62))}}, ("INVALID_ARGUMENT", "BAD_TIME", "filter.since")),
        ({"filter": {"until": Timestamp(nanos=-1)}}, ("INVALID_ARGUMENT", "BAD_TIME", "filter.until")),
    ],
)
def test_searches_out_of_bounds_are_refused(on_disk, fields, expected):
    fields = {**fields, "filter": wire.PrecedentFilter(**fields.get("filter", {}))}
    assert play(on_disk, lambda it: refusal_of(it.found(**fields))).summary == expected


async def test_the_limits_themselves_are_accepted(on_disk):
    async with a_scene(on_disk) as it:
        searches: list[dict[str, Any]] = [
            {"k": 0}, {"k": 1}, {"k": 1000}, {"alpha": 0.0}, {"alpha": 1.0}, {"text": "x" * 10_000},
            {"exclude": ["x" * 200] * 10_000}, {"filter": wire.PrecedentFilter(sources=["x" * 256] * 1000)},
        ]  # fmt: skip
        default, one, all_, *_, none = [len((await it.found(**one)).precedents) for one in searches]
    assert (default, one, none) == (10, 1, 0)
    assert all_ > 10


async def test_an_added_precedent_is_found_and_recorded_in_the_history(place):
    async with a_scene(place) as it:
        before = await it.library()
        fields = {
            "text": "quite unheard of", "image": PICTURE, "label": wire.LABEL_NOT_HARMFUL, "source": "appeals",
            "categories": ["one", "two"], "namespace": "forum", "language": "pt-BR", "verified": True,
            "why": "overruled on appeal",
        }  # fmt: skip
        added = await it.added("ada", **fields)
        assert (added.id, added.change) == ("new", 6)
        await until(lambda: has(it, "new"))
        (one,) = [one for one in (await it.found(text="quite unheard of", image=PICTURE)).precedents if one.id == "new"]
        assert one.similarity == pytest.approx(1)
        assert one.relation == wire.RELATION_SAME_MEME
        assert (one.label, one.source, list(one.categories)) == (wire.LABEL_NOT_HARMFUL, "appeals", ["one", "two"])
        now = await it.library()
        assert now.library.size == before.library.size + 1 and now.library.digest != before.library.digest
        assert now.harmful == before.harmful
        meme = it.meme("new")
        assert meme is not None and meme.verified
        assert (meme.namespace, meme.language, meme.who) == ("forum", "pt-BR", "ada")
        assert meme.pixels_sha256 == picture_of(PICTURE).pixels_sha256
        recorded = it.history("new")[-1].change
        assert (recorded.number, recorded.kind, recorded.who, recorded.why) == (
            6, ChangeKind.ADD, "ada", "overruled on appeal",
        )  # fmt: skip
        made_up = await it.added(id="", text="unheard of too", verified=False, source="")
        assert len(made_up.id) == 36 and made_up.change == 7
        other = it.meme(made_up.id)
        assert other is not None and not other.verified
        assert (other.source, other.who, other.has_picture) == ("bea", "bea", False)


async def has(it, id_, label=None):
    found = {one.id: one.label for one in (await it.found(k=1000)).precedents}
    return id_ in found and label in (None, found[id_])


async def test_a_removed_precedent_is_no_longer_found(place):
    async with a_scene(place) as it:
        assert await has(it, "of-3")
        assert await it.removed("of-3") == 6

        async def gone():
            return not await has(it, "of-3")

        await until(gone)
        assert (await it.library()).library.size == 44
        assert it.meme("of-3") is None
        change = it.history("of-3")[-1].change
        assert (change.kind, change.who, change.why) == (ChangeKind.REMOVE, "bea", "it is out of date")
        again = await refusal_of(it.removed("of-3"))
        assert again.summary == ("NOT_FOUND", "PRECEDENT_UNKNOWN", "id")
        taken = await refusal_of(it.added(id="of-3"))
        assert taken.summary == ("ALREADY_EXISTS", "DUPLICATE_ID", "id")


async def test_a_relabelled_precedent_is_found_with_its_new_label(place):
    async with a_scene(place) as it:
        meme = it.meme("of-1")
        assert meme is not None and not meme.verified
        harmful = (await it.library()).harmful
        other, label = (
            (wire.LABEL_NOT_HARMFUL, Label.NOT_HARMFUL) if meme.harmful else (wire.LABEL_HARMFUL, Label.HARMFUL)
        )
        assert await it.relabelled("of-1", other, "ada") == 6
        await until(lambda: has(it, "of-1", other))
        assert (await it.library()).harmful == harmful + (1 if label is Label.HARMFUL else -1)
        now = it.meme("of-1")
        assert now is not None and (now.label, now.verified, now.who, now.binding) == (label, True, "ada", False)
        change = it.history("of-1")[-1].change
        assert (change.kind, change.who, change.why) == (ChangeKind.RELABEL, "ada", "it was wrong")
        again = await refusal_of(it.relabelled("of-1", other, "ada"))
        assert again.summary == ("FAILED_PRECONDITION", "CANT_CHANGE", "label")
        # Who may review confirms a label so that it binds.
        assert await it.relabelled("of-1", other) == 7
        bound = it.meme("of-1")
        assert bound is not None and (bound.who, bound.binding) == ("bea", True)
        assert (await refusal_of(it.relabelled("of-1", other))).summary == again.summary
        unknown = await refusal_of(it.relabelled("nowhere", other))
        assert unknown.summary == ("NOT_FOUND", "PRECEDENT_UNKNOWN", "id")


async def test_concurrent_changes_are_all_made_and_numbered(place):
    async with a_scene(place) as it:
        ids = [f"new-{number}" for number in range(12)]
        answers = await asyncio.gather(*(it.added(id=id_, text=f"unheard {id_}") for id_ in ids))
        assert sorted(answer.change for answer in answers) == list(range(6, 18))
        assert [answer.id for answer in answers] == ids
        same = await asyncio.gather(*(it.added(id="twice") for _ in range(5)), return_exceptions=True)
        errors = [Refusal(one).summary for one in same if isinstance(one, grpc.aio.AioRpcError)]
        assert errors == [("ALREADY_EXISTS", "DUPLICATE_ID", "id")] * 4
        await until(lambda: has(it, "twice"))
        assert (await it.library()).library.size == 45 + 13


@pytest.mark.parametrize(
    ("caller", "fields", "expected"),
    [
        ("", {"id": "of-0"}, ("ALREADY_EXISTS", "DUPLICATE_ID", "id")),
        ("", {"id": "x" * 201}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "id")),
        ("", {"id": "  "}, ("INVALID_ARGUMENT", "FIELD_MISSING", "id")),
        ("", {"id": "x\0"}, ("INVALID_ARGUMENT", "FIELD_HOLDS_NUL", "id")),
        ("", {"text": ""}, ("INVALID_ARGUMENT", "NOTHING_TO_COMPARE", "text")),
        ("", {"text": "x" * 10_001}, ("INVALID_ARGUMENT", "TEXT_TOO_LONG", "text")),
        ("", {"image": b"no picture"}, ("INVALID_ARGUMENT", "NOT_A_PICTURE", "image")),
        ("", {"label": 0}, ("INVALID_ARGUMENT", "UNKNOWN_LABEL", "label")),
        ("", {"label": 3}, ("INVALID_ARGUMENT", "UNKNOWN_LABEL", "label")),
        ("", {"label": 99}, ("INVALID_ARGUMENT", "UNKNOWN_LABEL", "label")),
        ("", {"categories": ["x"] * 33}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "categories")),
        ("", {"categories": ["x" * 101]}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "categories")),
        ("", {"source": "x" * 201}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "source")),
        ("", {"namespace": "x" * 129}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "namespace")),
        ("", {"language": "english, please"}, ("INVALID_ARGUMENT", "BAD_LANGUAGE", "language")),
        ("", {"who": ""}, ("INVALID_ARGUMENT", "FIELD_MISSING", "who")),
        ("", {"who": "x" * 201}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "who")),
        ("", {"why": " "}, ("INVALID_ARGUMENT", "FIELD_MISSING", "why")),
        ("", {"why": "x" * 2001}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "why")),
        ("ada", {"who": "bea"}, ("INVALID_ARGUMENT", "NOT_THE_CALLER", "who")),
        ("forum", {"namespace": "shop"}, ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED", "namespace")),
        ("forum", {"namespace": ""}, ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED", "namespace")),
    ],
)
async def test_invalid_additions_are_refused_and_change_nothing(on_disk, caller, fields, expected):
    async with a_scene(on_disk) as it:
        refusal, changes = await refusal_of(it.added(caller, **fields)), len(it.history())
    assert refusal.summary == expected
    assert changes == len(OF_ONE)


@pytest.mark.parametrize(
    ("caller", "fields", "expected"),
    [
        ("", {"id_": ""}, ("INVALID_ARGUMENT", "FIELD_MISSING", "id")),
        ("", {"id_": "x" * 201}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "id")),
        ("", {"id_": "of-0\0"}, ("INVALID_ARGUMENT", "FIELD_HOLDS_NUL", "id")),
        ("", {"id_": "nowhere"}, ("NOT_FOUND", "PRECEDENT_UNKNOWN", "id")),
        ("", {"who": ""}, ("INVALID_ARGUMENT", "FIELD_MISSING", "who")),
        ("", {"why": ""}, ("INVALID_ARGUMENT", "FIELD_MISSING", "why")),
        ("ada", {"who": "bea"}, ("INVALID_ARGUMENT", "NOT_THE_CALLER", "who")),
    ],
)
async def test_invalid_changes_are_refused_and_change_nothing(on_disk, caller, fields, expected):
    arguments = {"id_": "of-1", "caller": caller, **fields}
    async with a_scene(on_disk) as it:
        refusals = [await refusal_of(it.removed(**arguments)), await refusal_of(it.relabelled(label=1, **arguments))]
        changes = len(it.history())
    assert [one.summary for one in refusals] == [expected, expected]
    assert changes == len(OF_ONE)


@pytest.mark.parametrize("label", [0, 3, 99])
def test_invalid_labels_are_refused(on_disk, label):
    refusal = play(on_disk, lambda it: refusal_of(it.relabelled("of-1", label)))
    assert refusal.summary == ("INVALID_ARGUMENT", "UNKNOWN_LABEL", "label")


async def test_a_caller_limited_to_namespaces_sees_and_changes_only_its_own(place):
    async with a_scene(place) as it:
        everybodys = {f"drawn-{number}" for number in range(40)} | {"of-4"}
        visible = set(await it.ids("forum"))
        assert {"of-0", "of-1", "of-2", "of-4"} <= visible
        assert visible <= everybodys | {"of-0", "of-1", "of-2"}
        assert set(await it.ids("forum", filter=wire.PrecedentFilter(namespaces=["blog"]))) == {"of-2"}
        assert set(await it.ids("forum", filter=wire.PrecedentFilter(namespaces=[""]))) <= everybodys
        refusal = await refusal_of(it.found("forum", filter=wire.PrecedentFilter(namespaces=["blog", "shop"])))
        assert refusal.summary == ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED", "filter.namespaces")

        # Other namespaces' precedents appear not to exist; shared ones exist, but cannot be changed.
        for call in (lambda id_: it.removed(id_, "forum"), lambda id_: it.relabelled(id_, wire.LABEL_HARMFUL, "forum")):
            unknown = await refusal_of(call("nowhere"))
            foreign = await refusal_of(call("of-3"))
            assert foreign.summary == unknown.summary == ("NOT_FOUND", "PRECEDENT_UNKNOWN", "id")
            assert foreign.message.replace("of-3", "nowhere") == unknown.message
            for id_ in ("drawn-0", "of-4"):
                assert (await refusal_of(call(id_))).summary == ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED", "id")
        assert len(it.history()) == len(OF_ONE)

        # Its own precedents can be changed, even those that searches do not show yet.
        assert (await it.added("forum", namespace="blog")).change == 6
        assert await it.removed("new", "forum") == 7
        assert await it.removed("of-0", "forum") == 8
        assert it.history("of-0")[-1].change.who == "forum"
        assert await it.removed("of-3", "shop") == 9


def test_the_library_is_described(place, drawn):
    description = play(place, lambda it: it.library())
    assert (description.library.name, description.library.digest, description.library.size) == (
        "drawn",
        drawn.digest,
        45,
    )
    assert description.encoder == str(ENCODER.identity)
    assert description.harmful == sum(meme.harmful for meme in drawn.memes)
    assert (description.alpha, description.voters) == (TUNING.alpha, TUNING.vote.k)


async def test_pictures_are_decoded_in_the_guarded_reader(on_disk):
    async def work(it):
        hostile = (b"<svg xmlns='http://www.w3.org/2000/svg'/>", PICTURE[:20])
        refusals = [await refusal_of(it.found(image=one)) for one in hostile]
        refusals += [await refusal_of(it.added(image=one)) for one in hostile]
        change = (await it.added(image=PICTURE)).change
        return refusals, change

    reader = GuardedPictureReader(workers=1)
    try:
        async with a_scene(on_disk, pictures=reader) as it:
            refusals, change = await work(it)
    finally:
        await reader.aclose()
    assert {(one.code.name, one.field) for one in refusals} == {("INVALID_ARGUMENT", "image")}
    assert change == 6


async def test_a_full_disk_is_unavailable_and_changes_nothing(on_disk, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    async with a_scene(on_disk) as it:
        with monkeypatch.context() as patched:
            patched.setattr(journal, "append", full)
            refusal = await refusal_of(it.added())
        assert (await it.added()).change == 6
        assert refusal.summary == ("UNAVAILABLE", "LIBRARY_NOT_WRITTEN", "")


async def test_a_library_locked_by_another_writer_is_unavailable(on_disk, monkeypatch):
    from retrieval.library import writer

    monkeypatch.setattr(writer, "_WAIT_S", 0.1)
    async with a_scene(on_disk) as it:
        with storage.writing(on_disk, 1):
            refusal = await refusal_of(it.removed("of-0"))
            assert await has(it, "of-0")  # searches do not wait for the lock
        change = await it.removed("of-0")
    assert refusal.summary == ("UNAVAILABLE", "LIBRARY_LOCKED", "")
    assert refusal.of(error_details_pb2.RetryInfo)  # nothing was started, so a retry is safe
    assert change == 6


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unavailable("Gone.", reason="SEARCH_FAILED"), ("UNAVAILABLE", "SEARCH_FAILED", "")),
        (BadLibrary("Broken."), ("FAILED_PRECONDITION", "BAD_LIBRARY", "")),
        (RuntimeError("/secret/path"), ("INTERNAL", "INTERNAL", "")),
    ],
)
def test_errors_of_a_search_are_distinguished(on_disk, monkeypatch, error, expected):
    async def find(*_, **__):
        raise error

    monkeypatch.setattr(LibraryFinder, "find", find)
    refusal = play(on_disk, lambda it: refusal_of(it.found()))
    assert refusal.summary == expected
    assert "secret" not in refusal.message


async def test_a_caller_that_leaves_a_search_affects_no_other(on_disk):
    async with a_scene(on_disk) as it:
        call = it.stub.SearchPrecedents(wire.SearchPrecedentsRequest(text="cat"), timeout=TIMEOUT)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert len((await it.found()).precedents) == 10


CALLS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "SearchPrecedents": lambda it: it.found(),
    "AddPrecedent": lambda it: it.added(),
    "RemovePrecedent": lambda it: it.removed("of-1"),
    "RelabelPrecedent": lambda it: it.relabelled("of-2", wire.LABEL_HARMFUL),
    "GetLibrary": lambda it: it.library(),
}


def test_every_method_is_covered_here():
    assert set(CALLS) == {method.name for method in wire.DESCRIPTOR.services_by_name["Precedents"].methods}


@pytest.mark.parametrize("name", ["AddPrecedent", "RemovePrecedent", "RelabelPrecedent"])
def test_a_change_that_may_be_stored_is_not_offered_for_retry(on_disk, monkeypatch, name):
    """The library fails just after the change is made."""
    made = LibraryWriter._made

    def lost(self, plan):
        made(self, plan)
        raise Unavailable("The library is away.", reason="LIBRARY_UNAVAILABLE")

    monkeypatch.setattr(LibraryWriter, "_made", lost)
    refusal = play(on_disk, lambda it: refusal_of(CALLS[name](it)))
    assert refusal.summary == ("UNAVAILABLE", "LIBRARY_UNAVAILABLE", "")
    assert not refusal.of(error_details_pb2.RetryInfo) and "look before you ask again" in refusal.message


@pytest.mark.parametrize("name", CALLS)
async def test_calls_outside_a_session_are_unavailable(on_disk, name):
    async with a_scene(on_disk) as it:
        it.service.close()
        assert (await refusal_of(CALLS[name](it))).summary == ("UNAVAILABLE", "CLOSING", "")


@pytest.mark.parametrize("name", CALLS)
def test_a_court_without_a_library_refuses_every_call(on_disk, name):
    refusal = play(on_disk, lambda it: refusal_of(CALLS[name](it)), finder=FakeFinder(findings([H])))
    assert refusal.summary == ("FAILED_PRECONDITION", "LIBRARY_NOT_LOADED", "")
