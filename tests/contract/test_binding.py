"""Exact copies of precedents that named persons answer for, over gRPC and HTTP, with libraries on disk."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager, contextmanager

import httpx2
import pytest

from court.verdict import Label
from eval.replay.replay import replay
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from memecourt.verify import verify_bundle
from retrieval.build import STARTER_MEMES, build_library
from retrieval.library.sources import Provenance, Source
from retrieval.library.writer import LibraryWriter
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.docket.review.corrections import Corrections
from serving.rest.moderations import moderation_of
from tests.support.encoders import PlainPictureReader
from tests.support.libraries import ENCODER
from tests.support.real_court import real_court
from tests.support.service_calls import refusal_of

BOTH = {"http": "127.0.0.1:0", "pictures": PlainPictureReader()}
WIRE = {Label.HARMFUL: wire.LABEL_HARMFUL, Label.NOT_HARMFUL: wire.LABEL_NOT_HARMFUL}
OTHER = {Label.HARMFUL: Label.NOT_HARMFUL, Label.NOT_HARMFUL: Label.HARMFUL}
RIGHT = {Label.HARMFUL: "block", Label.NOT_HARMFUL: "allow"}
ROWS = [json.loads(line) for line in STARTER_MEMES.read_text("utf-8").splitlines()][:70]


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def picture_of(row):
    return (STARTER_MEMES.parent / "pictures" / row["image"]).read_bytes()


def built(path, *, rows=ROWS, pictures=True, **provenance):
    """Builds a library of drawn memes."""
    path.mkdir(exist_ok=True)
    (path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = Source(
        path / "rows.jsonl",
        name="tutorial",
        pictures=STARTER_MEMES.parent / "pictures" if pictures else None,
        provenance=Provenance(**provenance),
    )
    library, _ = asyncio.run(
        build_library(
            path / "built",
            [source],
            name="tutorial",
            encoder=ENCODER,
            picture_reader=PlainPictureReader() if pictures else None,
        )
    )
    return library


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    """Seventy rows that Ruth answers for, of which the first has a contradiction by Tom."""
    library = built(tmp_path_factory.mktemp("bound"), binding_by="Ruth")
    writer, meme = LibraryWriter(library), library.memes[0]
    twin = meme.model_copy(update={"id": "twin", "label": OTHER[meme.label], "who": "Tom", "kept": None})
    writer.add(twin, library.vector_of(0), None, who="Tom", why="I see it otherwise.")
    return writer.library


@asynccontextmanager
async def with_client(path, **options):
    async with (
        real_court(path, **BOTH, **options) as court,
        httpx2.AsyncClient(base_url=court.http, trust_env=False, timeout=120) as client,
    ):
        yield court, client


def copy_request(row, **fields):
    return judge_request(picture_of(row), text=row["text"], **fields)


@pytest.mark.slow
async def test_seventy_of_seventy_copies_get_their_own_label_or_go_to_a_person_for_a_conflict(tmp_path, bound):
    async with with_client(tmp_path, library=bound) as (court, client):
        for number, row in enumerate(ROWS):
            answer = await court.judge.Judge(copy_request(row))
            image = base64.b64encode(picture_of(row)).decode()
            sent = await client.post("/v1/judge", json={"image": image, "text": row["text"]})
            assert sent.status_code == 200, sent.text
            over_http = sent.json()
            if number == 0:
                assert answer.decision == over_http["decision"] == "review"
                assert [each.reason for each in answer.review_reasons] == [wire.REVIEW_REASON_LABELS_CONFLICT]
                assert answer.in_force.by == wire.AUTHORITY_COURT
                continue
            label = Label(row["label"])
            assert (answer.label, answer.decision) == (WIRE[label], RIGHT[label])
            assert (answer.in_force.by, answer.in_force.id) == (wire.AUTHORITY_PRECEDENT, row["id"])
            in_force = over_http["inForce"] if "inForce" in over_http else over_http["in_force"]
            assert (in_force["by"], in_force["id"], over_http["decision"]) == (
                "AUTHORITY_PRECEDENT",
                row["id"],
                RIGHT[label],
            )
            assert f"the same meme as precedent {row['id']}, labelled" in answer.rationale
            assert "by Ruth on" in answer.rationale


async def test_every_way_out_names_the_precedent_and_the_record_can_be_replayed(tmp_path, bound):
    row = ROWS[1]
    async with with_client(tmp_path, library=bound) as (court, _):
        answer = await court.judge.Judge(copy_request(row, request_id="r"))
        repeated = await court.judge.Judge(copy_request(row, request_id="r"))
        repost = await court.judge.Judge(copy_request(row))
        verdict = (await court.judge.GetVerdict(wire.GetVerdictRequest(trial_id=answer.verdict_id))).verdict
        lines = (await court.records.ListTrials(wire.ListTrialsRequest())).trials
        trial = await court.records.GetTrial(wire.GetTrialRequest(trial_id=answer.verdict_id))
        record = await court.docket.trials.record(answer.verdict_id)
        assert repeated.verdict_id == answer.verdict_id != repost.verdict_id
        for each in (answer, repeated, repost, verdict, *lines, trial.trial.summary):
            assert (each.in_force.by, each.in_force.id) == (wire.AUTHORITY_PRECEDENT, row["id"])
            assert each.decision == each.in_force.decision == RIGHT[Label(row["label"])]
        (result,) = moderation_of([verdict])["results"]
        assert result["memecourt"]["in_force"]["id"] == row["id"]
        event = record.verdict_event
        assert event.binding.who == "Ruth" and event.binding.at == record.in_force.at
        assert [each.kind for each in record.events] == ["TrialOpened", "TextRead", "VerdictGiven"]
        replayed = await replay(record)
        assert (replayed.obstacle, replayed.differences) == ("", ())
        docket = court.docket
        proved = verify_bundle(await docket.auditor.bundle(answer.verdict_id), [await docket.log.vkey()])
        assert proved.last("VerdictGiven")["copies"][0]["who"] == "Ruth"


async def test_only_the_very_meme_is_bound(tmp_path, bound):
    row, other = ROWS[1], ROWS[2]
    async with with_client(tmp_path, library=bound) as (court, _):
        near = [
            judge_request(picture_of(row), text=f"{row['text']} now"),
            judge_request(picture_of(row), text=""),
            judge_request(picture_of(other), text=row["text"]),
            judge_request(text=row["text"]),
            judge_request(picture_of(row)),  # read as another text
        ]
        for request in near:
            answer = await court.judge.Judge(request)
            assert answer.in_force.by == wire.AUTHORITY_COURT, request.text
        loud = judge_request(picture_of(row), text=f"  {row['text'].upper()} ")
        assert (await court.judge.Judge(loud)).in_force.by == wire.AUTHORITY_PRECEDENT


@pytest.mark.promise("DP-2", "an unverified or wholesale verified copy decides nothing: the same verdict, and a signal")
@pytest.mark.parametrize("provenance", [{}, {"verified": True}, {"binding_by": "Ruth", "namespace": "north"}])
def test_a_copy_that_does_not_bind_only_adds_a_signal(tmp_path, provenance):
    library = built(tmp_path / "rows", rows=ROWS[:12], **provenance)

    async def answers(path, **settings):
        async with real_court(path, library=library, pictures=PlainPictureReader(), **settings) as court:
            return [await court.judge.Judge(copy_request(row)) for row in ROWS[:12]]

    with_bindings = asyncio.run(answers(tmp_path / "exact"))
    without = asyncio.run(answers(tmp_path / "off", binding="off"))
    for one, other in zip(with_bindings, without, strict=True):
        assert (one.label, one.decision, one.harm_score) == (other.label, other.decision, other.harm_score)
        assert one.in_force.by == wire.AUTHORITY_COURT
        assert wire.REVIEW_REASON_COPY_NOT_BINDING in [each.reason for each in one.signals]


async def test_a_precedent_binds_in_its_namespace_and_until_it_is_removed(tmp_path):
    rows = tmp_path / "rows"
    library = await asyncio.to_thread(built, rows, rows=ROWS[:12], binding_by="Ruth", namespace="north")
    row = ROWS[3]
    async with real_court(tmp_path, library=library, pictures=PlainPictureReader(), reuse="everywhere") as court:

        async def by(namespace):
            return (await court.judge.Judge(copy_request(row, namespace=namespace))).in_force.by

        assert [await by(namespace) for namespace in ("south", "north", "south", "north")] == [
            wire.AUTHORITY_COURT,
            wire.AUTHORITY_PRECEDENT,
        ] * 2
        removal = wire.RemovePrecedentRequest(id=row["id"], who="ada", why="It was wrong.")
        answers = [by("north") for _ in range(8)]
        _, *those = await asyncio.gather(court.precedents.RemovePrecedent(removal), *answers)
        assert set(those) <= {wire.AUTHORITY_PRECEDENT, wire.AUTHORITY_COURT}
        court.finder.swap(court.finder.searched.newer())
        assert await by("north") == wire.AUTHORITY_COURT


async def test_a_finding_of_a_person_goes_before_a_binding_precedent(tmp_path, bound):
    row = ROWS[1]
    label = OTHER[Label(row["label"])]
    async with with_client(tmp_path, library=bound) as (court, _):
        answer = await court.judge.Judge(copy_request(row))
        review = wire.ReviewVerdictRequest(
            trial_id=answer.verdict_id,
            outcome=wire.REVIEW_OUTCOME_OVERRULED,
            label=WIRE[label],
            reason="I looked.",
            reviewer="ada",
        )
        await court.records.ReviewVerdict(review)
        for request in (copy_request(row), copy_request(row, try_anew=True)):
            repost = await court.judge.Judge(request)
            assert (repost.in_force.by, repost.decision) == (wire.AUTHORITY_PERSON, RIGHT[label])


async def test_texts_alone_are_bound_by_texts_alone(tmp_path):
    rows = [{"id": f"t-{n}", "label": row["label"], "text": row["text"]} for n, row in enumerate(ROWS[:12])]
    pictured = {"id": "pictured", "label": "HARMFUL", "text": "my bird sings", "image": ROWS[0]["image"]}
    options = {"rows": [*rows, pictured], "pictures": False, "binding_by": "Ruth"}
    library = await asyncio.to_thread(built, tmp_path / "rows", **options)
    async with real_court(tmp_path, library=library, pictures=PlainPictureReader()) as court:
        for row in rows:
            answer = await court.judge.Judge(judge_request(text=row["text"]))
            assert (answer.in_force.by, answer.in_force.id) == (wire.AUTHORITY_PRECEDENT, row["id"])
            assert answer.decision == RIGHT[Label(row["label"])]
        # Its picture was left out, so that the row is a part of what was labelled.
        for request in (judge_request(text="my bird sings"), copy_request(ROWS[0])):
            assert (await court.judge.Judge(request)).in_force.by == wire.AUTHORITY_COURT


async def test_over_grpc_a_label_binds_only_by_a_caller_who_may_review_too(tmp_path):
    file = tmp_path / "tokens.toml"
    scopes = {"admin": [Scope.ADMIN, Scope.JUDGE], "chair": [Scope.ADMIN, Scope.JUDGE, Scope.REVIEW]}
    tokens = {name: bearer(token_file.add(file, name, own, None)) for name, own in scopes.items()}
    async with real_court(tmp_path, tokens=file) as court:

        async def added(name, **fields):
            request = wire.AddPrecedentRequest(label=wire.LABEL_NOT_HARMFUL, why="I looked.", **fields)
            return await court.precedents.AddPrecedent(request, metadata=tokens[name])

        async def by(text):
            court.finder.swap(court.finder.searched.newer() or court.finder.searched)
            answer = await court.judge.Judge(judge_request(text=text), metadata=tokens["admin"])
            return answer.in_force.by, answer.in_force.id

        refused = await refusal_of(added("admin", id="a", text="cat sings", binding=True))
        assert refused.summary[:2] == ("PERMISSION_DENIED", "SCOPE_MISSING")
        await added("admin", id="b", text="cat sings", verified=True)
        assert (await by("cat sings"))[0] == wire.AUTHORITY_COURT
        await added("chair", id="c", text="dog sings", binding=True)
        assert await by("dog sings") == (wire.AUTHORITY_PRECEDENT, "c")
        # A label that its giver may not bind with binds no longer.
        relabelled = wire.RelabelPrecedentRequest(id="c", label=wire.LABEL_HARMFUL, why="No.")
        await court.precedents.RelabelPrecedent(relabelled, metadata=tokens["admin"])
        assert (await by("dog sings"))[0] == wire.AUTHORITY_COURT


async def test_a_precedent_that_a_reviewer_makes_binds(tmp_path, bound):
    row = ROWS[69]
    request = judge_request(picture_of(row), text="my bird sings")
    async with with_client(tmp_path, library=bound) as (court, _):
        answer = await court.judge.Judge(request)
        review = wire.ReviewVerdictRequest(
            trial_id=answer.verdict_id,
            outcome=wire.REVIEW_OUTCOME_OVERRULED,
            label=wire.LABEL_NOT_HARMFUL if answer.label != wire.LABEL_NOT_HARMFUL else wire.LABEL_HARMFUL,
            reason="I looked.",
            reviewer="ada",
        )
        await court.records.ReviewVerdict(review)
        record = await court.docket.trials.record(answer.verdict_id)

        @contextmanager
        def opened():
            yield writer

        writer = LibraryWriter(court.finder.searched)
        corrections = Corrections(opened, lambda: ENCODER, court.docket.trials)
        await corrections.follow(record, record.review, chosen=True)
        court.finder.swap(writer.library)
        meme = writer.meme(f"trial:{answer.verdict_id}")
        assert (meme.who, meme.binding) == ("ada", True)
        assert (await court.judge.Judge(request)).in_force.by == wire.AUTHORITY_PERSON
        # A text that is read is other content for the finding, and the same meme for the precedent.
        court.reader.result = "My bird sings"
        repost = await court.judge.Judge(judge_request(picture_of(row)))
        assert (repost.in_force.by, repost.in_force.id) == (wire.AUTHORITY_PRECEDENT, meme.id)
