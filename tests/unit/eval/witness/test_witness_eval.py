"""Tests of the evaluation of the witness: files of claims, arms, exact figures, and resuming a run."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, contextmanager
from re import split, sub
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner
from sklearn.metrics import f1_score

from court.errors import BadRequest, Unavailable
from court.ports import ChatRequest
from court.verdict import ClaimBasis, ClaimLabel, QuotedPassage
from eval.cli import cli
from eval.datasets.claims import Gold, read_claims
from eval.models.call_cache import SqliteCallCache
from eval.reports.sections import as_text
from eval.solvers.witness import Arm, CheckedClaim
from eval.standin.server import FakeModelServer
from eval.witness.run import CHECKED, WitnessFolder, WitnessPlan, run_witness
from eval.witness.scores import score_arms, witness_lead, witness_sections
from eval.witness.world import (
    COUNTS,
    PROPERTIES,
    Situation,
    WorldReader,
    claim_in,
    documents_of,
    draw_world,
    expected,
    open_drawn,
)
from retrieval.facts.corpus import open_corpus
from retrieval.facts.source import CorpusEvidence
from retrieval.facts.writer import write_corpus
from tests.support.golden import check_figures
from tests.support.paths import TESTS
from tests.support.stand_ins import listening

FACTS = draw_world()
COUNTS_NOT_ENOUGH = COUNTS[Situation.DISPUTED] + COUNTS[Situation.HALF] + COUNTS[Situation.ABSENT]
GOLDEN = TESTS / "golden" / "witness.txt"


def claims_file(tmp_path, *lines):
    path = tmp_path / "claims.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "expected_claims"),
    [
        (
            [{"id": "a", "claim": "X is Y.", "label": "True"}, {"claim": "Z.", "label": False}],
            [("a", "True"), ("2.1", "False")],
        ),
        (  # FacTool-KBQA
            [
                {
                    "prompt": "?",
                    "claims": [{"claim": "A", "label": True}, {"claim": "B", "label": False}],
                    "label": False,
                }
            ],
            [("1.1", "True"), ("1.2", "False")],
        ),
        (  # BingCheck
            [
                {"claim": "A", "label": "supported"},
                {"claim": "B", "label": "refuted"},
                {"claim": "C", "label": "partially supported"},
                {"claim": "D", "label": "not supported"},
            ],
            [("1.1", "True"), ("2.1", "False")],
        ),
        (  # Factcheck-Bench, claims only
            [{"claim": "A", "label": "true", "revised_claim": "A"}, {"claim": "B", "label": "not_enough_evidence"}],
            [("1.1", "True")],
        ),
    ],
)
def test_claims_are_read_in_every_layout(tmp_path, lines, expected_claims):
    assert [(claim.id, str(claim.gold)) for claim in read_claims(claims_file(tmp_path, *lines))] == expected_claims


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"claim": "A", "label": "true"}, "{broken"], "line 2: the line is no JSON object"),
        ([{"claim": "A"}], "line 1: it has no claim with a label"),
        ([{"claim": "A", "label": "perhaps"}], "line 1: its label 'perhaps' is none"),
        ([{"claim": "A", "label": 1}], "is none"),
        ([{"claim": " ", "label": True}], "a claim is a text"),
        (
            [{"claim": "A", "label": True, "id": 7}, {"claim": "B", "label": True, "id": "7"}],
            "line 2: its id '7' is taken",
        ),
        ([{"claims": ["A"]}], "it has no claim"),
        ([{"question": "A"}], "it has no claim"),
        ([{"claim": "A", "label": "Unknown"}], "holds no claim that is true or false"),
        ([{"claim": "A"}] * 14, "and 4 more"),
    ],
)
def test_unusable_claims_file_is_refused_with_its_lines(tmp_path, lines, words):
    with pytest.raises(BadRequest) as error:
        read_claims(claims_file(tmp_path, *lines))
    assert words in error.value.message and error.value.reason == "CLAIMS_UNREADABLE"


def test_drawn_world_has_the_declared_facts():
    assert Counter(fact.situation for fact in FACTS) == COUNTS and sum(COUNTS.values()) == len(FACTS) == 200
    assert sum(fact.true for fact in FACTS) == 100
    assert draw_world() == FACTS != draw_world(1)
    for fact in FACTS:
        assert claim_in(fact.claim) == (fact.trait, fact.place, fact.value if fact.true else fact.other)
    stated = {fact.place + fact.trait for fact in FACTS if fact.situation is Situation.ABSENT}
    texts = [document.text for document in documents_of(FACTS)]
    for fact in FACTS:
        if fact.place + fact.trait in stated:
            assert not any(place == fact.place for text in texts for place, _, _ in PROPERTIES[fact.trait].read(text))


def run(tmp_path, *, model=None, **options):
    """Runs the evaluation on the drawn world in its own folder; returns the manifest and the checked claims."""
    plan = WitnessPlan(
        **{"out": tmp_path / "out", "claims": tuple(fact.gold for fact in FACTS), "arms": tuple(Arm), **options}
    )

    async def evaluate():
        async with AsyncExitStack() as stack:
            store = SqliteCallCache(tmp_path / "calls.sqlite")
            stack.push_async_callback(store.close)
            source, reader = open_drawn(stack)
            return await run_witness(
                plan, model=model or reader, source=source, store=store, citations_by=WorldReader(FACTS).model()
            )

    manifest = asyncio.run(evaluate())
    return manifest, WitnessFolder(plan.out).checked()


@pytest.mark.slow
@pytest.mark.parametrize("steps", ["merged", "apart"])
def test_findings_in_the_drawn_world_are_as_expected_in_every_arm(tmp_path, steps, request):
    manifest, checked = run(tmp_path, steps=steps)
    reader = WorldReader(FACTS)
    assert [check.id for check in checked] == [fact.gold.id for _ in Arm for fact in FACTS]
    for arm in Arm:
        lines = {check.id: check for check in checked if check.arm is arm}
        for fact in FACTS:
            expected_label = expected(fact, arm, remembers=reader.remembers(fact))
            assert lines[fact.gold.id].label is expected_label, (arm, fact)
    cards = {card.arm: card for card in score_arms(checked)}
    right = COUNTS[Situation.STATED] + COUNTS[Situation.BURIED] + COUNTS[Situation.LINKED]
    witness, outdated = cards[Arm.WITNESS], COUNTS[Situation.OUTDATED]
    assert witness.figures["accuracy"].value == right / 200 == 0.6
    assert witness.figures["coverage"].value == (right + outdated) / 200
    assert witness.figures["decided_accuracy"].value == right / (right + outdated)
    assert cards[Arm.NO_RANK].figures["accuracy"].value == cards[Arm.ONE_SHOT].figures["accuracy"].value
    assert cards[Arm.NO_RANK].figures["against"].value == pytest.approx(-COUNTS[Situation.BURIED] / 200)
    assert cards[Arm.FIRE].figures["against"].value == pytest.approx(-COUNTS[Situation.BURIED] / 200)
    calls = {(check.arm, check.id): check.calls for check in checked}
    assert all(1 < calls[Arm.FIRE, fact.gold.id] <= calls[Arm.WITNESS, fact.gold.id] for fact in FACTS)
    assert witness.figures["not_attempted"].value == pytest.approx(COUNTS_NOT_ENOUGH / 200)
    assert cards[Arm.NO_SECOND_LOOK].figures["against"].value == pytest.approx(-COUNTS[Situation.LINKED] / 200)
    # A passage that names the place by a nickname does not support a finding by itself.
    assert witness.figures["backed"].value == (right + outdated - COUNTS[Situation.LINKED]) / (right + outdated)
    assert sum(check.second_looks for check in checked if check.arm is Arm.WITNESS) == COUNTS[Situation.LINKED]
    assert not any(check.second_looks and check.calls == 0 for check in checked)
    if steps == "merged":
        text = as_text(witness_lead(manifest, list(cards.values())), witness_sections(manifest, list(cards.values())))
        text = sub(r"sha256:\w+", "sha256:…", text)  # digests of files, which other releases of bm25s write differently
        if request.config.getoption("--write-golden"):
            GOLDEN.write_text(text + "\n")
        assert text + "\n" == GOLDEN.read_text()


def test_a_few_claims_are_checked_as_expected(tmp_path):
    some = [next(fact for fact in FACTS if fact.situation is situation) for situation in Situation]
    _, checked = run(tmp_path, claims=tuple(fact.gold for fact in some), arms=(Arm.WITNESS, Arm.ONE_SHOT))
    reader = WorldReader(FACTS)
    for check, (arm, fact) in zip(
        checked, [(arm, fact) for arm in (Arm.WITNESS, Arm.ONE_SHOT) for fact in some], strict=True
    ):
        assert check.label is expected(fact, arm, remembers=reader.remembers(fact))
    linked = next(check for check, fact in zip(checked, some, strict=False) if fact.situation is Situation.LINKED)
    assert linked.because is ClaimBasis.ENOUGH and linked.second_looks == 1 and len(linked.evidence) == 2


def test_forced_mode_answers_every_claim_as_published(tmp_path):
    some = [fact for fact in FACTS if fact.situation is Situation.ABSENT][:6]
    _, checked = run(
        tmp_path, claims=tuple(fact.gold for fact in some), arms=(Arm.WITNESS,), forced=True, steps="apart"
    )
    reader = WorldReader(FACTS)
    for check, fact in zip(checked, some, strict=True):
        assert check.label is ClaimLabel.NOT_ENOUGH
        assert check.answer is check.forced is (fact.true if reader.remembers(fact) else True)
    (card,) = score_arms(checked)
    assert card.figures["coverage"].value == 1.0 and card.numbers["abstained"] == 0


class Flaky:
    """A model whose server becomes unavailable after some calls."""

    name = "world-reader"

    def __init__(self, good):
        self.inner, self.good, self.calls = WorldReader(FACTS).model(), good, 0

    async def reply(self, request, *, within_s):
        self.calls += 1
        if self.calls > self.good:
            raise Unavailable("The model server does not answer.", reason="MODEL_GONE")
        return await self.inner.reply(request, within_s=within_s)


def test_unavailable_server_ends_the_run_and_is_never_an_abstention(tmp_path):
    claims = tuple(fact.gold for fact in FACTS[:12])
    with pytest.raises(Unavailable, match="have no answer yet"):
        run(tmp_path, model=Flaky(20), claims=claims, arms=(Arm.WITNESS,), concurrency=2)
    before = WitnessFolder(tmp_path / "out").checked()
    assert 0 < len(before) < 12
    assert all(check.label in (ClaimLabel.SUPPORTED, ClaimLabel.REFUTED) for check in before)
    with (tmp_path / "out" / CHECKED).open("a") as file:
        file.write('{"id": "cut off in the')
    manifest, checked = run(tmp_path, claims=claims, arms=(Arm.WITNESS,), concurrency=2)
    assert [check.id for check in checked] == [claim.id for claim in claims] and manifest.finished
    assert {check.id: check for check in before}.items() <= {check.id: check for check in checked}.items()
    assert WitnessFolder(tmp_path / "out").manifest() == manifest


def test_resuming_with_different_options_names_the_differences(tmp_path):
    claims = tuple(fact.gold for fact in FACTS[:2])
    run(tmp_path, claims=claims, arms=(Arm.CLOSED_BOOK,))
    with pytest.raises(BadRequest, match=r"than is there now: queries .*; claims"):
        run(tmp_path, claims=claims[:1], arms=(Arm.CLOSED_BOOK,), queries=3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters.txt").write_text("mine")
    with pytest.raises(BadRequest, match="not empty"):
        run(tmp_path, claims=claims, arms=(Arm.CLOSED_BOOK,), out=tmp_path / "full")


def line(id_, gold, label, **fields):
    return CheckedClaim(id=id_, arm=fields.pop("arm", Arm.WITNESS), gold=gold, label=label, **fields)


def test_figures_match_scikit_learn_and_calculations_by_hand():
    yes, no, none = ClaimLabel.SUPPORTED, ClaimLabel.REFUTED, ClaimLabel.NOT_ENOUGH
    labels = [yes] * 6 + [no] * 2 + [none] * 2 + [no] * 3 + [yes] + [None]
    gold = [Gold.TRUE] * 10 + [Gold.FALSE] * 5
    lines = [line(str(number), truth, label) for number, (truth, label) in enumerate(zip(gold, labels, strict=True))]
    cited = (QuotedPassage(document="d", sha256="0" * 64, quote="q"),)
    judged = {"relations": ("supports", "neither"), "evidence": cited * 2, "quotes_dropped": 2}
    lines[0] = lines[0].model_copy(update=judged)
    lines[1] = lines[1].model_copy(update={"evidence": cited, "relations": ("refutes",)})
    (card,) = score_arms(lines, resamples=200)
    counts = {"n": 15, "true": 10, "abstained": 2, "failed": 1, "quotes": 3, "dropped": 2, "judged": 2}
    assert counts.items() <= card.numbers.items()
    truth = [int(label_of_claim is Gold.TRUE) for label_of_claim in gold]
    answers = [{yes: 1, no: 0}.get(label, 2) for label in labels]
    for average in ("macro", "weighted"):
        found = card.figures[f"{average}_f1"]
        assert found.value == pytest.approx(f1_score(truth, answers, labels=[0, 1], average=average))
        assert found.low < found.value < found.high
    by_hand = {"accuracy": 9 / 15, "coverage": 12 / 15, "decided_accuracy": 9 / 12, "verbatim": 3 / 5, "backed": 1 / 2}
    by_hand |= {"precision:True": 6 / 7, "recall:True": 6 / 10, "precision:False": 3 / 5, "recall:False": 3 / 5}
    assert {name: card.figures[name].value for name in by_hand} == by_hand
    (section,) = witness_sections(SimpleNamespace(citations_by=""), [card])
    assert [note.partition(" ")[0] for note in section.notes] == ["Intervals", "Verbatim", "No"]


def test_arms_are_compared_over_the_same_claims_only():
    yes, no = ClaimLabel.SUPPORTED, ClaimLabel.REFUTED
    lines = [line(str(number), Gold.TRUE, yes) for number in range(20)]
    lines += [line(str(number), Gold.TRUE, yes if number < 15 else no, arm=Arm.ONE_SHOT) for number in range(20)]
    witness, shot = score_arms(lines, resamples=500)
    assert witness.figures["against"] is None and shot.figures["against"].value == pytest.approx(-0.25)
    assert shot.figures["against"].high < 0


def test_command_checks_the_drawn_world(tmp_path, request):
    arguments = ["witness", "--drawn", "--out", str(tmp_path / "run"), "--limit", "12", "--arm", "one-shot", "--json"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    check_figures(request, "witness", figures)
    assert figures["arms"][0]["arm"] == "one-shot" and figures["arms"][0]["n"] == 12
    assert (tmp_path / "run" / "witness.html").exists()
    second = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert json.loads(second.stdout.splitlines()[-1])["arms"] == figures["arms"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--drawn", "--corpus", "c"], "leave --corpus out"),
        (["--drawn", "--arm", "fire"], "add --arm witness"),
        (["--claims", "c"], "Missing option --model"),
        (["--claims", "c", "--model", "m"], "Name a source of evidence"),
        (["--claims", "c", "--model", "m", "--corpus", "c", "--search-url", "http://x/"], "Name a source"),
    ],
)
def test_conflicting_options_are_named(tmp_path, options, words):
    done = CliRunner().invoke(cli, ["witness", "--out", str(tmp_path / "run"), *options])
    assert done.exit_code == 2 and words in done.output
    assert not (tmp_path / "run").exists()


def searches_fail(monkeypatch, reason, words="The search endpoint can't be reached."):
    async def search(*_, **__):
        raise Unavailable(words, reason=reason)

    monkeypatch.setattr(CorpusEvidence, "search", search)


@pytest.mark.parametrize("arm", [Arm.WITNESS, Arm.ONE_SHOT])
@pytest.mark.parametrize("reason", ["EVIDENCE_UNAVAILABLE", "EVIDENCE_TOO_SLOW", "EVIDENCE_REFUSED"])
def test_claims_without_their_source_stay_open_until_it_is_back(tmp_path, monkeypatch, arm, reason):
    options = {"claims": tuple(fact.gold for fact in FACTS[:6]), "arms": (arm,), "concurrency": 2}
    searches_fail(monkeypatch, reason)
    with pytest.raises(Unavailable, match=r"6 of 6 checks have no answer yet.*can't be reached"):
        run(tmp_path, **options)
    folder = WitnessFolder(tmp_path / "out")
    assert not folder.checked() and folder.manifest().finished is None
    monkeypatch.undo()
    _, checked = run(tmp_path, **options)
    assert [check.id for check in checked] == [claim.id for claim in options["claims"]]
    assert not any(check.failure for check in checked)


def test_garbled_search_result_is_a_failure_and_not_an_abstention(tmp_path, monkeypatch):
    searches_fail(monkeypatch, "EVIDENCE_GARBLED", "What the search endpoint sends is no JSON.")
    _, (one,) = run(tmp_path, claims=(FACTS[0].gold,), arms=(Arm.WITNESS,))
    assert one.label is None and one.failure == "EVIDENCE_GARBLED"
    (card,) = score_arms([one, one.model_copy(update={"id": "other"})])
    assert card.numbers["failed"] == 2 and card.numbers["abstained"] == 0 and card.figures["coverage"].value == 0


@contextmanager
def searched(corpus, queries):
    """Serves the corpus as a search endpoint; yields its port."""

    async def search(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        (query,) = parse_qs(urlsplit(head.split(" ")[1]).query)["q"]
        queries.append(query)
        results = [
            {"url": f"https://drawn.example/{hit.id}", "title": hit.document.title, "content": hit.text}
            for hit in corpus.search(query, 10)
        ]
        body = json.dumps({"results": results}).encode()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    with start_blocking_portal() as portal:
        server = portal.call(asyncio.start_server, search, "127.0.0.1")
        yield server.sockets[0].getsockname()[1]
        portal.call(server.close)


def answers(reader):
    """The answers of the stand-in model server: the reader's replies to the witness, and its own to probes."""

    def answer(payload):
        content = payload["messages"][-1]["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
        schema = (payload.get("response_format") or {}).get("json_schema", {}).get("schema")
        if not any("The claim:" in text for text in texts):
            return None
        parts = tuple(
            piece
            for text in texts
            for piece in split(r"(?m)(?=^(?:The claim:|Evidence so|A new|Result |A pass))", text)
        )
        request = ChatRequest(system="", parts=parts, reply_schema=schema, max_tokens=1)
        return json.dumps(reader.reply(request))

    return answer


@pytest.mark.slow
def test_command_uses_model_and_search_servers_over_http(tmp_path):
    some = [fact for fact in FACTS if fact.situation is Situation.STATED][:4]
    write_corpus(tmp_path / "facts", documents_of(FACTS), name="drawn")
    server = FakeModelServer(answer=answers(WorldReader(FACTS)), keep=True)
    claims = claims_file(tmp_path, *({"id": f.gold.id, "claim": f.claim, "label": str(f.gold.gold)} for f in some))
    queries = []
    with listening(server) as url, searched(open_corpus(tmp_path / "facts"), queries) as port:
        models = tmp_path / "models.toml"
        models.write_text(f'[models.m]\nurl = "{url}"\nmodel = "{server.settings.model}"\n')
        ask = ["witness", "--claims", str(claims), "--model", "m", "--models", str(models), "--json"]
        for source in (["--corpus", str(tmp_path / "facts")], ["--search-url", f"http://127.0.0.1:{port}/search"]):
            out = tmp_path / source[0].strip("-")
            done = CliRunner().invoke(cli, [*ask, *source, "--out", str(out)], catch_exceptions=False)
            assert done.exit_code == 0, done.output
            (card,) = json.loads(done.stdout.splitlines()[-1])["arms"]
            assert card["accuracy"]["value"] == 1.0 and card["n"] == 4, done.output
            assert card["backed"]["value"] == 1.0
    assert len(queries) >= 4
    # Only claims and documents go to the model, without any picture.
    assert not any("image_url" in json.dumps(sent["messages"]) for sent in server.requests)
