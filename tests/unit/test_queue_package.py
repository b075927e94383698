"""The consumers' package: parsing of messages, metrics, alerts, dependencies, and the files that start it."""

import ast
import json
import re
import sys
import tomllib

import pytest
import yaml
from click.testing import CliRunner

from memecourt.errors import JudgeError
from memecourt.v1 import court_pb2 as wire
from memecourt_queue.cli import main
from memecourt_queue.metrics import QueueMetrics
from memecourt_queue.pictures import retry_after
from memecourt_queue.request import answer_of, request_of
from memecourt_queue.source import DeadLetter, QueuedMeme, request_id_of
from tests.support.paths import ROOT

PACKAGE = ROOT / "integrations/queue"
RULES = yaml.safe_load((ROOT / "deploy/prometheus/queue_alerts.yml").read_text())["groups"][0]["rules"]
IMPORTED_AS = {"grpcio": "grpc", "grpcio-health-checking": "grpc_health", "nats-py": "nats", "protobuf": "google"}


def meme(**parts):
    parts = {name: value if isinstance(value, bytes) else value.encode() for name, value in parts.items()}
    return QueuedMeme(id="7", life="a", request_id="memes/7/x", parts=parts, size=1, sha256="0")


def test_messages_become_requests():
    fields = {"request_id": "mine", "content": {"namespace": "forum", "id": "7"}, "image": "AAEC", "language": "en"}
    request, url = request_of(meme(request=json.dumps(fields), text="für alle"))
    assert (request.request_id, request.content.namespace, request.image) == ("mine", "forum", b"\0\1\2")
    assert (request.text, request.language, url) == ("für alle", "en", None)
    request, url = request_of(meme(request='{"image_url": "https://a.b/"}'))
    assert (request.request_id, url, request.HasField("text")) == ("memes/7/x", "https://a.b/", False)
    assert request_of(meme(image=b"\x89PNG"))[0].image == b"\x89PNG"


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({}, "MALFORMED_REQUEST"),
        ({"request": "no JSON"}, "MALFORMED_REQUEST"),
        ({"request": "[]"}, "MALFORMED_REQUEST"),
        ({"request": "[" * 100_000}, "MALFORMED_REQUEST"),
        ({"request": '{"text": NaN}'}, "MALFORMED_REQUEST"),
        ({"request": '{"txt": "a"}'}, "MALFORMED_REQUEST"),
        ({"request": '{"text": ["a"]}'}, "MALFORMED_REQUEST"),
        ({"request": '{"text": "a", "text": "b"}'}, "MALFORMED_REQUEST"),
        ({"request": '{"content": {"id": "1", "id": "2"}, "text": "a"}'}, "MALFORMED_REQUEST"),
        ({"request": '{"request_id": "a", "requestId": "b", "text": "a"}'}, "MALFORMED_REQUEST"),
        ({"picture": b"\x89PNG"}, "MALFORMED_REQUEST"),
        ({"image": b"", "text": "a"}, "PICTURE_EMPTY"),
        ({"text": "a", "request": '{"image": null}'}, "PICTURE_EMPTY"),
        ({"text": "a", "request": '{"image": ""}'}, "PICTURE_EMPTY"),
        ({"text": "a", "request": '{"image_url": null}'}, "MALFORMED_REQUEST"),
        ({"image": b"a", "request": '{"image": "AAEC"}'}, "MALFORMED_REQUEST"),
        ({"image": b"a", "request": '{"image_url": "https://a.b/"}'}, "MALFORMED_REQUEST"),
        ({"text": b"\xff"}, "MALFORMED_REQUEST"),
        ({"text": "a", "request": '{"text": "b"}'}, "MALFORMED_REQUEST"),
        ({"request": '{"image": "%%%"}'}, "BAD_BASE64"),
        ({"request": '{"image": 7}'}, "BAD_BASE64"),
        ({"text": "a", "request": '{"client_token": "%%%"}'}, "BAD_BASE64"),
    ],
)
def test_malformed_messages_are_refused_with_a_reason(parts, reason):
    with pytest.raises(JudgeError) as caught:
        request_of(meme(**parts))
    assert (caught.value.reason, caught.value.code.name) == (reason, "INVALID_ARGUMENT")


@pytest.mark.parametrize("sent", ["block", "allow", "review", "", "free"])
def test_answers_carry_the_decision_and_are_equal_for_equal_verdicts(sent):
    decision = sent if sent in ("block", "allow") else "review"
    verdict = wire.JudgeResponse(request_id="mine", label=wire.LABEL_NOT_HARMFUL, decision=sent, rationale="ä")
    answer = answer_of(meme(text="a"), verdict)
    assert (answer.id, answer.request_id, answer.decision) == ("7", "mine", decision)
    assert json.loads(answer.verdict)["decision"] == sent
    assert answer == answer_of(meme(text="a"), wire.JudgeResponse.FromString(verdict.SerializeToString()))


def test_request_ids_differ_by_stream_id_and_origin_and_fit_the_contract():
    ids = [
        request_id_of(stream, id_, origin)
        for stream in ("memes", "m" * 500, "m" * 501)
        for id_ in ("1", "18446744073709551615-18446744073709551615")
        for origin in ("2026-01-01", "2026-01-02")
    ]
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) <= 128


@pytest.mark.parametrize("filling", ["x", "\n", "ä", "\U0001f600"])
def test_shortened_letters_take_about_a_kilobyte(filling):
    letter = DeadLetter("7", filling * 9000, "REASON", filling * 9000, "ABORTED", 3, 9000, "0" * 64).shortened()
    assert len(json.dumps({name: getattr(letter, name) for name in DeadLetter.__slots__})) < 1200
    assert (letter.id, letter.reason, letter.size, letter.content) == ("7", "REASON", 9000, "left out")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("", None), ("soon", None), ("7", 7.0), ("-1", 0.0), ("1e9", 3600.0), ("inf", None), ("nan", None)],
)
def test_retry_after_is_read_and_bounded(value, seconds):
    assert retry_after(value) == seconds
    assert retry_after("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0


def test_alerts_use_existing_metrics_and_say_what_to_do():
    suffixes = {"counter": "_total", "info": "_info"}
    families = [each for each in QueueMetrics().registry.collect() if each.name.startswith("memecourt_")]
    existing = {each.name + suffixes.get(each.type, "") for each in families}
    assert len(RULES) == 5 and all(rule["annotations"]["description"] for rule in RULES)
    assert set(re.findall(r"\bmemecourt_\w+", " ".join(rule["expr"] for rule in RULES))) <= existing


def test_package_imports_what_it_declares_and_nothing_of_the_court():
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]}
    declared = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}
    imported = set()
    for path in (PACKAGE / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level
                imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) - {"memecourt_queue"} == declared
    assert not declared & {"court", "retrieval", "serving", "eval"}


def test_help_names_the_variables():
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0 and "MEMECOURT_QUEUE_METRICS" in shown.output
