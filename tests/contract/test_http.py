"""The services over HTTP, through a real socket, with third-party clients: curl and an HTTP library."""

import asyncio
import base64
import gzip
import json
import socket

import openai
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from court.errors import BadRequest, Unavailable
from memecourt.v1 import court_pb2 as wire
from serving.access import tokens as token_file
from serving.access.callers import Scope
from serving.http.listen import Listener, open_listener
from serving.rest.judging import later_after
from serving.rest.messages import message_of, object_of
from serving.rest.moderations import CATEGORIES, moderation_of
from serving.rest.operations import OPERATIONS
from serving.rest.problems import STATUS_OF_CODE
from serving.rpc.flow_control import MESSAGE_BYTES
from serving.rpc.server import SCOPES
from serving.rpc.status import _CODES
from serving.settings import Settings
from tests.support.http import an_api, reason
from tests.support.leftovers import collect_earlier_garbage
from tests.support.playing import until
from tests.support.real_court import IMAGE, real_court
from tests.support.sizes import FULL

BASE64 = base64.b64encode(IMAGE).decode()
PNG = {"content-type": "image/png"}
FIELDS = tuple(field.name for field in wire.JudgeRequest.DESCRIPTOR.fields)


async def curl(*arguments, data=b""):
    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--show-error", "--noproxy", "*", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(data)
    assert process.returncode == 0
    return output.decode()


def a_part(text, headers):
    """Returns a form whose text part has the given headers."""
    head = f'--b\r\n{headers}content-disposition: form-data; name="text"\r\n\r\n'
    return {
        "content": head.encode() + text + b"\r\n--b--\r\n",
        "headers": {"content-type": "multipart/form-data; boundary=b"},
    }


def form(**fields):
    return {"files": {"image": ("meme.png", IMAGE, "image/png")}, "data": fields}


# Judge


async def test_every_way_to_send_a_picture_gets_the_verdict_of_grpc(tmp_path):
    async with an_api(tmp_path) as (court, client):
        request = {"content": {"namespace": "forum", "id": "1"}, "text": "my bird sings", "try_anew": True}
        message = json_format.ParseDict(request, wire.JudgeRequest(image=IMAGE))
        expected = await court.judge.Judge(message)
        data_url = f"data:image/png;base64,{BASE64}"
        query = "text=my+bird+sings&content.namespace=forum&content.id=1&try_anew=true"
        answers = [
            await client.post("/v1/judge", json={**request, "image": BASE64}),
            await client.post("/v1/judge", json={**request, "image_url": data_url}),
            await client.post("/v1/judge", **form(request=json.dumps(request))),
            await client.post(f"/v1/judge?{query}", content=IMAGE, headers=PNG),
        ]
        for answer in answers:
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert body["decision"] in ("allow", "block", "review")
            verdict = json_format.ParseDict(body, wire.JudgeResponse())
            for own in ("verdict_id", "request_id", "timings", "receipt", "decided_at", "trace_id", "in_force"):
                verdict.ClearField(own)
            for own in ("verdict_id", "request_id", "timings", "receipt", "decided_at", "trace_id", "in_force"):
                expected.ClearField(own)
            assert verdict == expected
        assert len({answer.json()["verdict_id"] for answer in answers}) == 4


async def test_a_text_without_picture_gets_the_verdict_of_grpc_in_any_form(tmp_path):
    async with an_api(tmp_path) as (court, client):
        expected = await court.judge.Judge(wire.JudgeRequest(text="my bird sings"))
        # A part without a file name, like a form field: with data alone the library would send no form.
        for options in ({"json": {"text": "my bird sings"}}, {"files": {"text": (None, "my bird sings")}}):
            answer = await client.post("/v1/judge", **options)
            assert answer.status_code == 200, answer.text
            verdict = answer.json()
            assert (verdict["verdict_id"], verdict["decision"]) == (expected.verdict_id, expected.decision)
            assert "picture" not in verdict
            assert "REVIEW_REASON_PICTURE_NOT_SENT" in [signal["reason"] for signal in verdict["signals"]]


async def test_curl_judges_a_picture_and_gets_the_same_verdict_again(tmp_path):
    async with an_api(tmp_path) as (court, _):
        picture = tmp_path / "meme.png"
        picture.write_bytes(IMAGE)
        arguments = ("-H", "idempotency-key: post-1", "-F", f"image=@{picture}", "-F", "text=my bird sings")
        first = json.loads(await curl(*arguments, f"{court.http}/v1/judge"))
        again = json.loads(await curl(*arguments, f"{court.http}/v1/judge"))
        assert first["request_id"] == "post-1"
        assert first["verdict_id"] == again["verdict_id"]
        assert first["needs_human_review"] in (True, False)  # present even if false
        other = await curl("-F", f"image=@{picture}", "-H", "idempotency-key: post-1", f"{court.http}/v1/judge")
        assert json.loads(other)["reason"] == "REQUEST_ID_TAKEN"
        raw = await curl("--data-binary", "@-", "-H", "content-type: image/png", f"{court.http}/v1/judge", data=IMAGE)
        assert json.loads(raw)["label"].startswith("LABEL_")


REFUSED = {
    "MALFORMED_REQUEST": {
        "an unknown field": {"json": {"image": BASE64, "txt": "x"}},
        "an unknown field inside": {"json": {"image": BASE64, "content": {"nam": "x"}}},
        "a text that is a number": {"json": {"image": BASE64, "text": 7}},
        "a list": {"json": []},
        "no JSON": {"content": b"{", "headers": {"content-type": "application/json"}},
        "deep JSON": {"content": b'{"a":' * 5000 + b"1" + b"}" * 5000, "headers": {"content-type": "application/json"}},
        "a picture and an address": {"json": {"image": BASE64, "image_url": f"data:;base64,{BASE64}"}},
        "an unknown query": {"content": IMAGE, "headers": PNG, "params": {"txt": "x"}},
        "a message in a query": {"content": IMAGE, "headers": PNG, "params": [("content", ""), ("content.id", "x")]},
        "a map in a query": {"content": IMAGE, "headers": PNG, "params": {"pins.models": "x"}},
        "a message that is a text": {"json": {"image": BASE64, "content": "x"}},
        "a map that is a list": {"json": {"image": BASE64, "pins": {"models": [1]}}},
        "a text twice": {"content": IMAGE, "headers": PNG, "params": [("text", "x"), ("text", "y")]},
        "an unknown part": form(txt="x"),
        "a part that is no JSON": form(request="x"),
        "a part that is encoded": a_part(b"bXkgYmlyZA==", "content-transfer-encoding: Base64\r\n"),
        "a part in UTF-16": a_part("my bird".encode("utf-16-le"), "content-type: text/plain; charset=UTF-16LE\r\n"),
        "a part in ISO 2022": a_part("鳥".encode("iso2022_jp"), "content-type: text/plain; charset=ISO-2022-JP\r\n"),
        # These bytes happen to be valid UTF-8 for another word.
        "a part in Latin-1": a_part("Ã©".encode("latin-1"), "content-type: text/plain; charset=ISO-8859-1\r\n"),
        "a form without a boundary": {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
        "a form that is cut": {"content": b"--b\r\n", "headers": {"content-type": "multipart/form-data; boundary=b"}},
        "a field in both spellings": {"json": {"image": BASE64, "request_id": "a", "requestId": "a"}},
        "a query that is not UTF-8": {"url": "/v1/judge?text=caf%E9", "content": IMAGE, "headers": PNG},
    },
    "BAD_BASE64": {
        "no base64": {"json": {"image": "%%%"}},
        "base64 without padding": {"json": {"image": BASE64[:-1]}},
        "bytes that are a number": {"json": {"image": 7}},
    },
    "URL_NOT_ALLOWED": {"an address": {"json": {"image_url": "https://cdn.example.org/1.png"}}},
    "BAD_DATA_URL": {"a bad data: address": {"json": {"image_url": "data:image/png,abc"}}},
    "MEDIA_TYPE_NOT_TAKEN": {
        "another media type": {"content": b"x", "headers": {"content-type": "text/plain"}},
        "no media type": {"content": b"x"},
        "a compressed body": {
            "content": gzip.compress(b"{}"),
            "headers": {"content-type": "application/json", "content-encoding": "gzip"},
        },
    },
    "QUERY_NOT_TAKEN": {"a query beside JSON": {"json": {"image": BASE64}, "params": {"text": "x"}}},
    "FIELD_TOO_LONG": {"a part that is too long": form(text="x" * 70_000)},
    "NOT_A_PICTURE": {"no picture": {"content": b"nope", "headers": PNG}},
    "PICTURE_EMPTY": {
        # With a text: a request meant to have a picture is never judged by its text alone.
        "a file without bytes in a form": {"files": {"image": ("meme.png", b"", "image/png")}, "data": {"text": "x"}},
        "a body without bytes": {"content": b"", "headers": PNG, "params": {"text": "x"}},
        "a picture that is null": {"json": {"image": None, "text": "x"}},
        "base64 of no bytes": {"json": {"image": "", "text": "x"}},
        "an address of no bytes": {"json": {"image_url": "data:image/png;base64,", "text": "x"}},
        "neither picture nor text": {"json": {}},
    },
    "ADDRESS_CONTRADICTS": {
        "two ids": {"json": {"image": BASE64, "request_id": "a"}, "headers": {"idempotency-key": "b"}},
        "two ids in two spellings": {"json": {"image": BASE64, "requestId": "a"}, "headers": {"idempotency-key": "b"}},
    },
    "BAD_TIMEOUT": {
        "no time": {"content": IMAGE, "headers": {**PNG, "x-timeout-s": "soon"}},
        "no time at all": {"content": IMAGE, "headers": {**PNG, "x-timeout-s": "0"}},
        "no wait": {"content": IMAGE, "headers": {**PNG, "prefer": "respond-async, wait=x"}},
        "a wait without end": {"content": IMAGE, "headers": {**PNG, "prefer": f"respond-async, wait={'9' * 5000}"}},
    },
}
"""Requests by the reason that they are refused with."""


async def test_malformed_requests_are_refused_with_a_reason(tmp_path):
    async with an_api(tmp_path) as (court, client):
        for expected, requests in REFUSED.items():
            for name, options in requests.items():
                answer = await client.post(**{"url": "/v1/judge", **options})
                status = 415 if expected == "MEDIA_TYPE_NOT_TAKEN" else 400
                assert reason(answer, status) == expected, (name, answer.text)
        assert court.court.memory.bytes_in_use == 0


async def test_form_text_may_declare_utf_8_or_be_ascii_in_a_superset(tmp_path):
    async with an_api(tmp_path) as (_, client):
        for text, headers in (
            ("mein Vögelchen", "content-type: text/plain; charset=UTF-8\r\ncontent-transfer-encoding: 8bit\r\n"),
            ("my bird sings", 'content-type: text/plain; charset="ISO-8859-1"\r\n'),
        ):
            answer = await client.post("/v1/judge", **a_part(text.encode(), headers))
            assert answer.json()["text"]["text"] == text


async def test_an_oversized_body_is_413_with_or_without_a_declared_length(tmp_path):
    async def pieces(size):
        for _ in range(size // 2**16 + 1):
            yield bytes(2**16)

    async with an_api(tmp_path) as (court, client):
        for options in (
            {"content": bytes(MESSAGE_BYTES + 1), "headers": PNG},
            {"content": pieces(MESSAGE_BYTES + 1), "headers": PNG},
        ):
            answer = await client.post("/v1/judge", **options)
            assert reason(answer, 413) == "BODY_TOO_LARGE"
            assert "retry-after" not in answer.headers
        assert court.court.memory.bytes_in_use == 0


async def test_a_deadline_ends_the_trial_with_504(tmp_path):
    async with an_api(tmp_path) as (court, client):
        court.reader.wait = asyncio.Event()
        answer = await client.post("/v1/judge", content=IMAGE, headers={**PNG, "x-timeout-s": "0.5"})
        assert reason(answer, 504) == "DEADLINE"
        await until(lambda: not court.reception.admission.running)


async def test_a_caller_that_disconnects_ends_its_trial(tmp_path):
    async with an_api(tmp_path) as (court, client):
        court.reader.wait = asyncio.Event()
        asking = asyncio.create_task(client.post("/v1/judge", content=IMAGE, headers=PNG))
        await court.reader.asked.wait()
        assert court.reception.admission.running == 1
        asking.cancel()
        await until(lambda: not court.reception.admission.running)
        assert court.court.memory.bytes_in_use == 0


HALF = b"POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\nx"


@pytest.mark.parametrize("later", [b"", b"Prefer: respond-async\r\n"])
async def test_a_caller_that_disconnects_in_mid_body_leaves_nothing_behind(tmp_path, caplog, later):
    collect_earlier_garbage(caplog)
    async with an_api(tmp_path) as (court, _):
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", int(court.http.rpartition(":")[2]))
            writer.write(HALF.replace(b"Host", later + b"Host"))
            await until(lambda: court.court.memory.bytes_in_use)
            writer.close()
            await until(lambda: not court.court.memory.bytes_in_use)
        await asyncio.sleep(0.1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_missing_body_times_out(tmp_path):
    async with an_api(tmp_path, idle=0.5) as (court, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(court.http.rpartition(":")[2]))
        writer.write(HALF)
        answer = (await reader.readuntil(b"}")).decode()
        assert answer.startswith("HTTP/1.1 400 ")
        assert '"reason":"IDLE"' in answer
        assert not court.court.memory.bytes_in_use
        writer.close()


@pytest.mark.parametrize(
    ("values", "wait_s"),
    [
        ([], None),
        (["wait=5"], None),
        (["respond-async"], 0.0),
        (["Respond-Async, WAIT=5"], 5.0),
        (["wait = 5", "respond-async; soon"], 5.0),
        (['respond-async;soon="yes", wait="5"'], 5.0),
        (["respond-async, wait=5, wait=7"], 5.0),
    ],
)
def test_preferences_are_parsed_as_in_rfc_7240(values, wait_s):
    headers = [(b"prefer", value.encode()) for value in values]
    assert later_after(Request({"type": "http", "headers": headers})) == wait_s


async def test_asynchronous_requests_are_answered_with_a_location(tmp_path):
    async with an_api(tmp_path) as (court, client):
        court.reader.wait = asyncio.Event()
        headers = {**PNG, "prefer": "respond-async", "idempotency-key": "post/1"}
        answer = await client.post("/v1/judge?content.namespace=forum", content=IMAGE, headers=headers)
        assert answer.status_code == 202
        assert answer.headers["preference-applied"] == "respond-async"
        location = answer.headers["location"]
        assert location == "/v1/requests/post%2F1?request.namespace=forum"
        assert (answer.json()["request_id"], answer.json()["state"]) == ("post/1", "TRIAL_STATE_OPEN")
        status = (await client.get(location)).json()
        assert status["state"] == "TRIAL_STATE_OPEN" and "verdict" not in status
        court.reader.wait.set()

        async def finished():
            return (await client.get(location)).json()["state"] != "TRIAL_STATE_OPEN"

        await until(finished)
        status = (await client.get(location)).json()
        assert status["state"] == "TRIAL_STATE_DECIDED"
        assert status["verdict"]["decision"] in ("allow", "block", "review")
        assert status["verdict"]["content"] == {"namespace": "forum", "id": ""}
        by_trial = (await client.get(f"/v1/trials/{status['trial_id']}/verdict")).json()
        assert by_trial == status
        soon = await client.post("/v1/judge?text=x", content=IMAGE, headers={**PNG, "prefer": "wait=60, respond-async"})
        assert (soon.status_code, soon.json()["text"]["text"]) == (200, "x")
        refused = await client.post("/v1/judge", content=b"nope", headers={**PNG, "prefer": "respond-async"})
        assert reason(refused, 400) == "NOT_A_PICTURE"
        assert reason(await client.get("/v1/requests/nobody"), 404) == "TRIAL_UNKNOWN"


async def test_a_failed_trial_is_never_reported_as_a_verdict(tmp_path):
    async with an_api(tmp_path) as (court, client):
        court.reader.result = Unavailable("The reader is away.", reason="READER_AWAY")
        answer = await client.post("/v1/judge?request_id=a", content=IMAGE, headers=PNG)
        assert reason(answer, 503) == "READER_AWAY"
        assert answer.json()["trial_id"]
        status = (await client.get("/v1/requests/a")).json()
        assert (status["state"], status["failure_reason"]) == ("TRIAL_STATE_FAILED", "READER_AWAY")
        assert "verdict" not in status and "decision" not in status


# Other addresses


async def test_each_address_calls_its_grpc_method(tmp_path):
    async with an_api(tmp_path) as (court, client):
        verdict = (await client.post("/v1/judge?text=my+bird+sings", content=IMAGE, headers=PNG)).json()
        trial_id = verdict["verdict_id"]
        listed = (await client.get("/v1/trials?page_size=1&filter.states=TRIAL_STATE_DECIDED")).json()
        assert [each["trial_id"] for each in listed["trials"]] == [trial_id]
        assert (await client.get("/v1/trials?filter.reviewed=true")).json()["trials"] == []
        record = (await client.get(f"/v1/trials/{trial_id}")).json()["trial"]
        assert record == as_json((await court.records.GetTrial(wire.GetTrialRequest(trial_id=trial_id))).trial)
        label = "LABEL_HARMFUL" if verdict["label"] == "LABEL_NOT_HARMFUL" else "LABEL_NOT_HARMFUL"
        outcome = {"outcome": "REVIEW_OUTCOME_OVERRULED", "label": label, "reason": "r", "reviewer": "me"}
        reviewed = (await client.post(f"/v1/trials/{trial_id}/review", json=outcome)).json()
        assert reviewed["summary"]["review"]["label"] == label
        found = (await client.post("/v1/precedents:search", json={"text": "my bird sings", "k": 2})).json()
        assert len(found["precedents"]) == 2
        by_picture = (await client.post("/v1/precedents:search?k=3", content=IMAGE, headers=PNG)).json()
        assert len(by_picture["precedents"]) == 3
        own = {"who": "me", "why": "to try it"}
        fields = {"id": "a/b", "label": "LABEL_HARMFUL", **own}
        added = (await client.post("/v1/precedents", **form(request=json.dumps(fields)))).json()
        assert added["id"] == "a/b"
        assert reason(await client.post("/v1/precedents", json={**fields, "text": "x"}), 409) == "DUPLICATE_ID"
        relabelled = await client.patch("/v1/precedents/a/b", json={"label": "LABEL_NOT_HARMFUL", **own})
        assert relabelled.status_code == 200, relabelled.text
        assert (await client.delete("/v1/precedents/a/b", params=own)).status_code == 200
        assert reason(await client.delete("/v1/precedents/a/b", params=own), 404)
        library = (await client.get("/v1/library")).json()
        assert library == as_json(await court.precedents.GetLibrary(wire.GetLibraryRequest()))


def as_json(message):
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


async def test_unknown_addresses_and_verbs_are_problems(tmp_path):
    async with an_api(tmp_path) as (_, client):
        assert reason(await client.get("/v1/nope"), 404) == "NO_SUCH_ADDRESS"
        assert reason(await client.get("/"), 404) == "NO_SUCH_ADDRESS"
        # Callers' ids may contain characters that begin or end a query.
        assert reason(await client.get("/v1/requests/a%3Fb%3Dc%23d"), 404) == "TRIAL_UNKNOWN"
        # No redirect: a client would follow it with its token, over http if a proxy terminates TLS.
        assert reason(await client.post("/v1/judge/", json={}), 404) == "NO_SUCH_ADDRESS"
        wrong_verb = await client.get("/v1/judge")
        assert reason(wrong_verb, 405) == "VERB_NOT_TAKEN"
        assert wrong_verb.headers["allow"] == "POST"
        # HEAD of an endless stream would send headers, but never end.
        endless = await client.head("/v1/reviews/events")
        assert (endless.status_code, endless.headers["allow"]) == (405, "GET")
        assert (await client.head("/v1/library")).status_code == 200
        twice = {"trial_id": "b", "outcome": "REVIEW_OUTCOME_UPHELD", "reason": "r"}
        assert reason(await client.post("/v1/trials/a/review", json=twice), 400) == "ADDRESS_CONTRADICTS"


# Streams


def events_of(text):
    found = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            found.append(dict(line.split(": ", 1) for line in block.splitlines()))
    return found


async def test_events_of_a_trial_resume_after_the_last_event_id(tmp_path):
    async with an_api(tmp_path) as (court, client):
        verdict = (await client.post("/v1/judge?text=x", content=IMAGE, headers=PNG)).json()
        url = f"{court.http}/v1/trials/{verdict['verdict_id']}/events"
        every = events_of(await curl("-N", url))
        assert [event["event"] for event in every[-2:]] == ["VerdictGiven", "end"]
        assert [event["id"] for event in every[:-1]] == [str(number) for number in range(len(every) - 1)]
        assert json.loads(every[0]["data"])["kind"] == "TrialOpened"
        resumed = events_of(await curl("-N", "-H", "last-event-id: 1", url))
        assert resumed == every[2:]
        assert [event["event"] for event in events_of(await curl("-N", "-H", "last-event-id: 99", url))] == ["end"]
        for invalid in ("x", "9" * 5000):
            assert reason(await client.get(url, headers={"last-event-id": invalid}), 400) == "OUT_OF_RANGE"
        assert reason(await client.get("/v1/trials/none/events"), 404) == "TRIAL_UNKNOWN"


async def test_an_appeal_is_opened_once(tmp_path):
    async with an_api(tmp_path) as (_, client):
        content = {"namespace": "shop", "id": "7"}

        async def judge(text):
            return await client.post("/v1/judge", json={"text": text, "content": content})

        judged = await judge("people from Blueland are late")
        assert judged.status_code == 200, judged.text
        appeal = {"content": content, "statement": "It mocks our own habit.", "reference": "1", "by": "forum"}
        first, again = [(await client.post("/v1/appeals", json=appeal)).json() for _ in range(2)]
        assert first == again and first["trial_id"] == judged.json()["verdict_id"]
        assert reason(await client.post("/v1/appeals", json={**appeal, "statement": ""}), 400) == "FIELD_MISSING"
        unknown = {**appeal, "content": {"namespace": "shop", "id": "8"}}
        assert reason(await client.post("/v1/appeals", json=unknown), 404) == "TRIAL_UNKNOWN"


async def test_reviews_are_streamed_live_and_from_the_caller_s_position(tmp_path):
    async with an_api(tmp_path) as (_, client):
        verdict = (await client.post("/v1/judge?text=x", content=IMAGE, headers=PNG)).json()

        async def review(why):
            outcome = {"outcome": "REVIEW_OUTCOME_UPHELD", "reason": why, "reviewer": "me"}
            (await client.post(f"/v1/trials/{verdict['verdict_id']}/review", json=outcome)).raise_for_status()

        async with client.stream("GET", "/v1/reviews/events") as stream:
            lines = stream.aiter_lines()
            assert [await anext(lines) for _ in range(2)][1] == "event: position"
            await review("the first")
            received = [line async for line in lines_until(lines, "event: review")]
            position = next(line for line in reversed(received) if line.startswith("id: ")).removeprefix("id: ")
            assert "the first" in await anext(lines)
        await review("the second")
        async with client.stream("GET", "/v1/reviews/events", headers={"last-event-id": position}) as stream:
            lines = stream.aiter_lines()
            [_ async for _ in lines_until(lines, "event: review")]
            assert "the second" in await anext(lines)


# Lines


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line]


async def test_trials_are_exported_line_by_line(tmp_path):
    async with an_api(tmp_path) as (court, client):
        for number in range(3):
            fields = {"text": f"x {number}", "content": {"namespace": "forum", "id": str(number)}, "try_anew": True}
            (await client.post("/v1/judge", json={**fields, "image": BASE64})).raise_for_status()
        *trials, end = lines_of(await curl("-N", f"{court.http}/v1/trials:export?filter.namespace=forum"))
        assert end == {"end": {}}
        assert [each["trial"]["summary"]["content"]["id"] for each in trials] == ["0", "1", "2"]
        whole = (await client.get(f"/v1/trials/{trials[0]['trial']['summary']['trial_id']}")).json()
        assert trials[0] == whole
        assert lines_of(await curl("-N", f"{court.http}/v1/trials:export?filter.namespace=nobody")) == [{"end": {}}]
        refused = await client.get("/v1/trials:export?filter.nope=1")
        assert reason(refused, 400) == "MALFORMED_REQUEST"


async def test_webhook_public_keys_are_available_to_everybody(tmp_path):
    async with an_api(tmp_path) as (_, client):
        assert (await client.get("/v1/webhooks/keys")).json() == {"keys": ["whpk_AAAA"]}


async def lines_until(lines, last):
    async for line in lines:
        yield line
        if line == last:
            return


async def test_revoking_a_token_ends_its_stream_with_a_problem(tmp_path):
    path = tmp_path / "tokens.toml"
    token = token_file.add(path, "pipe", [Scope.JUDGE], None)
    async with an_api(tmp_path, tokens=path) as (court, client):
        headers = {"authorization": f"Bearer {token}"}
        court.reader.wait = asyncio.Event()
        asking = asyncio.create_task(client.post("/v1/judge", content=IMAGE, headers={**PNG, **headers}))
        await court.reader.asked.wait()
        trial = (await court.docket.index.list(limit=1))[0].trial_id
        async with client.stream("GET", f"/v1/trials/{trial}/events", headers=headers) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "id: 0"
            court.tokens.use((b"",))
            court.reader.wait.set()
            [_ async for _ in lines_until(lines, "event: problem")]
            assert "TOKEN_UNKNOWN" in await anext(lines)
        await asking


# Permissions


async def test_each_address_requires_the_scope_of_its_method(tmp_path):
    path = tmp_path / "tokens.toml"
    tokens = {scope: token_file.add(path, str(scope), [scope], None) for scope in Scope}
    async with an_api(tmp_path, tokens=path) as (_, client):
        for operation in OPERATIONS:
            path_ = operation.path.replace("{trial_id}", "x").replace("{id}", "x").replace("{request_id}", "x")
            for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic x"}):
                answer = await client.request(operation.verb, path_, headers=headers)
                assert answer.status_code == 401, path_
                assert answer.headers["www-authenticate"] == "Bearer"
            for scope, token in tokens.items():
                headers = {"authorization": f"Bearer {token}"}
                async with client.stream(operation.verb, path_, headers=headers) as answer:
                    assert (answer.status_code == 403) is (scope is not SCOPES[operation.full_name]), (path_, scope)
        for path_ in ("/v1/healthz", "/v1/readyz", "/v1/openapi.json", "/v1/docs", "/v1/docs/swagger-ui.css"):
            assert (await client.get(path_)).status_code == 200
        answer = await client.post("/v1/moderations", json={"input": "x"})
        assert answer.status_code == 401


async def test_a_token_is_limited_to_its_namespaces(tmp_path):
    path = tmp_path / "tokens.toml"
    token = token_file.add(path, "pipe", [Scope.JUDGE], ["forum"])
    async with an_api(tmp_path, tokens=path) as (_, client):
        client.headers["authorization"] = f"Bearer {token}"
        answer = await client.post("/v1/judge?content.namespace=other", content=IMAGE, headers=PNG)
        assert reason(answer, 403) == "NAMESPACE_NOT_ALLOWED"
        assert answer.json()["field"] == "content.namespace"
        later = {**PNG, "prefer": "respond-async"}
        assert (await client.post("/v1/judge?content.namespace=other", content=IMAGE, headers=later)).status_code == 403
        answer = await client.post("/v1/judge?content.namespace=forum&request_id=a", content=IMAGE, headers=PNG)
        assert answer.status_code == 200
        assert (await client.get("/v1/requests/a?request.namespace=forum")).status_code == 200
        assert (await client.get("/v1/requests/a?request.namespace=other")).status_code == 403
        assert (await client.get("/v1/requests/a")).status_code == 403


async def test_requests_from_other_sites_are_rejected(tmp_path):
    async with an_api(tmp_path) as (_, client):
        for headers, status in (
            ({"host": "evil.example"}, 421),
            ({"host": "evil.example:8081"}, 421),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"sec-fetch-site": "same-site"}, 403),
        ):
            answer = await client.post("/v1/judge", content=IMAGE, headers={**PNG, **headers})
            assert reason(answer, status)
            assert "access-control-allow-origin" not in answer.headers
        answer = await client.options("/v1/judge", headers={"origin": "https://evil.example"})
        assert answer.status_code == 405
        assert "access-control-allow-origin" not in answer.headers


async def test_with_tokens_any_host_name_is_accepted(tmp_path):
    path = tmp_path / "tokens.toml"
    token = token_file.add(path, "pipe", [Scope.JUDGE], None)
    async with an_api(tmp_path, tokens=path) as (_, client):
        headers = {**PNG, "host": "court.example", "authorization": f"Bearer {token}"}
        assert (await client.post("/v1/judge", content=IMAGE, headers=headers)).status_code == 200


def test_public_binding_requires_tokens_and_tls(tmp_path):
    with pytest.raises(BadRequest, match="HTTP API") as caught:
        with_listener(tmp_path, "0.0.0.0:0")
    assert (caught.value.reason, caught.value.field) == ("LISTENER_UNGUARDED", "http")
    for address in ("127.0.0.1", "8081", "127.0.0.1:x", ":8081"):
        with pytest.raises(BadRequest) as caught:
            with_listener(tmp_path, address)
        assert (caught.value.reason, caught.value.field) == ("ADDRESS_UNUSABLE", "http")


def with_listener(path, address):
    async def work():
        async with real_court(path / address.replace(":", "_"), http=address):
            raise AssertionError("the server listens")

    asyncio.run(work())


async def test_small_parts_of_an_answer_are_sent_at_once():
    """Without TCP_NODELAY head and body are 40 ms apart, as the caller's system delays its acknowledgement."""
    listener = Listener("The test", field="test", example="", at_once=4)

    async def app(scope, receive, send):
        socket_ = scope["state"]["connection"].transport.get_extra_info("socket")
        at_once = socket_.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await send({"type": "http.response.start", "status": 200 if at_once else 500, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with open_listener(listener, app, Settings(), "127.0.0.1:0") as url:
        assert "200 OK" in await curl("-i", url)


# Errors


def test_every_error_code_has_a_status_and_none_is_a_success():
    assert {code for _, code in _CODES} <= STATUS_OF_CODE.keys()
    assert all(400 <= status < 600 for status in STATUS_OF_CODE.values())


async def test_busy_answers_say_when_to_retry(tmp_path):
    async with an_api(tmp_path, concurrent_trials=1, waiting_trials=1) as (court, client):
        court.reader.wait = asyncio.Event()
        asking = [
            asyncio.create_task(client.post(f"/v1/judge?try_anew=true&request_id={n}", content=IMAGE, headers=PNG))
            for n in range(2)
        ]
        await until(lambda: court.reception.admission.running + court.reception.admission.waiting == 2)
        answer = await client.post("/v1/judge?try_anew=true", content=IMAGE, headers=PNG)
        assert reason(answer, 429) == "BUSY"
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["retry_after_s"] > 0
        court.reader.wait.set()
        assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200, 200]


async def test_an_internal_error_is_500_and_reveals_nothing(tmp_path):
    async with an_api(tmp_path) as (court, client):
        court.reader.result = ZeroDivisionError("/a/path")
        answer = await client.post("/v1/judge", content=IMAGE, headers=PNG)
        assert reason(answer, 500)
        assert "/a/path" not in answer.text
        court.court.close()
        closed = await client.post("/v1/judge", content=IMAGE, headers=PNG)
        assert reason(closed, 503) == "CLOSING"
        assert closed.headers["retry-after"]


@pytest.mark.parametrize("written", ["LABEL_HARMFUL", "label_harmful", "HARMFUL", "harmful", "Harmful"])
def test_enums_are_accepted_in_any_case_and_without_prefix(written):
    message = message_of(wire.ReviewVerdictRequest, {"trial_id": "t", "outcome": "Upheld", "label": written})
    assert (message.label, message.outcome) == (wire.LABEL_HARMFUL, wire.REVIEW_OUTCOME_UPHELD)
    nested = object_of(wire.ListTrialsRequest.DESCRIPTOR, [("filter.labels", written), ("filter.labels", "undecided")])
    assert message_of(wire.ListTrialsRequest, nested).filter.labels == [wire.LABEL_HARMFUL, wire.LABEL_UNDECIDED]


def test_unknown_values_of_an_enum_are_refused_with_the_allowed_ones():
    with pytest.raises(BadRequest) as caught:
        message_of(wire.JudgeRequest, {"procedure": "combat", "text": "x"})
    assert (caught.value.reason, caught.value.field) == ("UNKNOWN_VALUE", "procedure")
    assert "summary, full, cascade" in caught.value.message and "combat" not in caught.value.message


async def test_every_answer_has_a_request_id_which_the_caller_may_choose(tmp_path):
    async with an_api(tmp_path) as (_, client):
        own = await client.get("/v1/healthz", headers={"x-request-id": "mine/7"})
        assert own.headers["x-request-id"] == "mine/7"
        others = [await client.get("/v1/none", headers={"x-request-id": bad}) for bad in ("", "two words", "x" * 129)]
        ids = {answer.headers["x-request-id"] for answer in others}
        assert len(ids) == 3 and all(len(id_) == 32 for id_ in ids)


# Moderations, through OpenAI's own library

H, N, U = wire.LABEL_HARMFUL, wire.LABEL_NOT_HARMFUL, wire.LABEL_UNDECIDED
RACE, INSULT = ({"label": H, "categories": [name], "similarity": 0.5} for name in ("Race", "insult"))
LESS = {"label": H, "categories": ["politics"], "similarity": 0.25}
BENIGN = {"label": N, "categories": ["race"], "similarity": 1.0}


@pytest.mark.parametrize(
    ("verdict", "scores", "true"),
    [
        ({"label": H, "harm_score": 0.8, "precedents": [RACE, LESS, BENIGN]}, {"hate": 0.8, "politics": 0.4}, {"hate"}),
        ({"label": N, "harm_score": 0.3, "precedents": [RACE]}, {"hate": 0.3}, set()),
        ({"label": H, "harm_score": 0.8, "precedents": [INSULT]}, {"harassment": 0.8}, {"harassment"}),
        (
            {"label": H, "harm_score": 0.9, "precedents": [RACE], "finding": {"category": "child exploitation"}},
            {"sexual/minors": 0.9},
            {"sexual/minors"},
        ),
        ({"label": H}, {"other harm": 1.0}, {"other harm"}),
        ({"label": N}, {}, set()),
        ({"label": U}, {"other harm": 0.5}, set()),
        ({"label": 99}, {"other harm": 0.5}, set()),
    ],
)
def test_category_scores_come_from_finding_and_precedents(verdict, scores, true):
    (result,) = moderation_of([wire.JudgeResponse(decision="review", **verdict)])["results"]
    assert result["flagged"] is True
    assert {name: score for name, score in result["category_scores"].items() if score} == scores
    assert {name for name, value in result["categories"].items() if value} == true


async def test_moderations_work_with_openai_s_own_library(tmp_path):
    async with (
        an_api(tmp_path) as (court, _),
        openai.AsyncOpenAI(base_url=f"{court.http}/v1", api_key="any", max_retries=0) as client,
    ):
        parts = [
            {"type": "text", "text": "my bird sings"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
        ]
        answer = await client.moderations.create(input=parts, extra_headers={"idempotency-key": "m-1"})
        (result,) = answer.results
        verdict = result.model_extra["memecourt"]
        assert (verdict["request_id"], verdict["text"]["text"]) == ("m-1", "my bird sings")
        assert result.flagged is (verdict["decision"] != "allow")
        assert set(CATEGORIES) <= result.categories.to_dict().keys() == result.category_scores.to_dict().keys()
        assert result.categories.sexual_minors is False
        assert ["text", "image"] in result.category_applied_input_types.to_dict().values()
        (alone,) = (await client.moderations.create(input="my bird sings")).results
        assert ["text"] in alone.category_applied_input_types.to_dict().values()
        assert "picture" not in alone.model_extra["memecourt"]
        several = (await client.moderations.create(input=["my bird sings", "another text"])).results
        assert [one.model_extra["memecourt"]["text"]["text"] for one in several] == ["my bird sings", "another text"]
        assert several[0].model_extra["memecourt"]["verdict_id"] == alone.model_extra["memecourt"]["verdict_id"]
        for text_too in ([], parts[:1]):
            empty = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
            with pytest.raises(openai.BadRequestError) as caught:
                await client.moderations.create(input=[*text_too, empty])
            assert caught.value.code == "PICTURE_EMPTY"
        nothing_else = [{**part, **dict.fromkeys({"text", "image_url"} - part.keys())} for part in parts]
        (same,) = (await client.moderations.create(input=nothing_else)).results
        assert same.model_extra["memecourt"]["verdict_id"] == verdict["verdict_id"]
        content = {"content": {"namespace": "forum", "id": "7"}}
        again = await client.moderations.create(input=parts, extra_body=content)
        assert again.results[0].model_extra["memecourt"]["content"] == content["content"]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.moderations.create(input=[{"type": "image_url", "image_url": {"url": "https://a.example"}}])
        assert caught.value.code == "URL_NOT_ALLOWED"
        # A part with both text and picture is refused: neither half may be judged alone.
        both = [{**parts[0], **parts[1], "type": kind} for kind in ("text", "image_url")]
        for bad in ([], [{"type": "audio"}], parts + parts, ["x"] * 40, ["x", parts[0]], both[:1], both[1:]):
            with pytest.raises(openai.BadRequestError):
                await client.moderations.create(input=bad)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.moderations.create(input="x", extra_body={"inptu": "x"})
        assert caught.value.code == "MALFORMED_REQUEST"
        court.reader.result = Unavailable("The reader is away.", reason="READER_AWAY")
        with pytest.raises(openai.InternalServerError):
            await client.moderations.create(input=parts[1:])
        court.court.close()
        with pytest.raises(openai.InternalServerError) as caught:
            await client.moderations.create(input=parts)
        assert caught.value.code == "CLOSING"


# Fuzzing


@settings(max_examples=300 if FULL else 60)
@given(
    media=st.sampled_from(["application/json", "multipart/form-data; boundary=b", "image/png", "image/", ""]),
    body=st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(st.sampled_from([*FIELDS, "input", "type", "url", "x"]), inner, max_size=4),
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=100).map(lambda data: b'--b\r\ncontent-disposition: form-data; name="image"\r\n\r\n' + data),
    ),
    query=st.dictionaries(st.sampled_from([*FIELDS, "content.id", "pins.models", "a.b", "."]), st.text(max_size=20)),
)
def test_arbitrary_bodies_get_a_problem_with_a_reason_and_never_a_5xx(fuzzed, media, body, query):
    loop, court, client = fuzzed
    for operation in (operation for operation in OPERATIONS if not operation.descriptor.server_streaming):
        path = operation.path.replace("{trial_id}", "x").replace("{id}", "x").replace("{request_id}", "x")
        call = client.request(operation.verb, path, content=body, headers={"content-type": media}, params=query)
        answer = loop.run_until_complete(call)
        assert answer.status_code < 500, (operation.path, answer.text)
        if answer.status_code != 200:
            assert answer.json()["reason"]
    answer = loop.run_until_complete(client.post("/v1/moderations", content=body))
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
    assert court.court.memory.bytes_in_use == 0


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    loop = asyncio.new_event_loop()
    api = an_api(tmp_path_factory.mktemp("fuzzed"))
    court, client = loop.run_until_complete(api.__aenter__())
    yield loop, court, client
    loop.run_until_complete(api.__aexit__(None, None, None))
    loop.close()
