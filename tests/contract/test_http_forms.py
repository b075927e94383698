"""Legal and doubtful forms of HTTP requests, as clients, proxies and attackers write them."""

import asyncio
import base64
import json

import pytest

from tests.support.http import an_api
from tests.support.real_court import IMAGE

TEXT = "my bird sings"
ENCODED = base64.b64encode(IMAGE).decode()


def form(preamble, boundary="limit"):
    line = "\r\n" if preamble else ""
    parts = f'--{boundary}\r\nContent-Disposition: form-data; name="text"\r\n\r\n{TEXT}\r\n--{boundary}--\r\n'
    return {
        "content": f"{preamble}{line}{parts}".encode(),
        "headers": {"content-type": f"multipart/form-data; boundary={boundary}"},
    }


DOUBLED = [
    '{"text": "one", "text": "other"}',
    '{"text": "one", "request_id": "7", "te\\u0078t": "other"}',
    '{"content": {"namespace": "a", "id": "1", "namespace": "b"}, "text": "one"}',
    '{"text": "one", "image": "", "image": null}',
    '{"request_id": "{", "text": "one", "request_id": "\\"}"}',
]


async def test_repeated_json_names_are_refused(tmp_path):
    async with an_api(tmp_path) as (_, client):
        for body in DOUBLED:
            for path, sent in (
                ("/v1/judge", {"content": body, "headers": {"content-type": "application/json"}}),
                ("/v1/judge", {"files": {"request": (None, body)}}),
            ):
                answer = await client.post(path, **sent)
                assert answer.status_code == 400 and "twice" in answer.json()["detail"], body
        twice = f'{{"input": "{TEXT}", "model": "a", "input": "other"}}'
        answer = await client.post("/v1/moderations", content=twice)
        assert answer.status_code == 400 and "twice" in answer.json()["error"]["message"]
        # The same name in two objects, and texts that look like names or braces.
        honest = {"content": {"namespace": "text", "id": "text:{"}, "text": '{"text": "text", "text": "}'}
        assert (await client.post("/v1/judge", json=honest)).status_code == 200
        many = await client.post("/v1/judge", json={"text": [{}] * 200_000})
        assert many.status_code == 400


@pytest.mark.parametrize(
    "preamble", ["", "\r\n", "This is a message in several parts.", "a\r\n--limi\r\nb", "x" * 9000]
)
async def test_forms_may_have_a_preamble(tmp_path, preamble):
    async with an_api(tmp_path) as (_, client):
        answer = await client.post("/v1/judge", **form(preamble))
        assert answer.status_code == 200 and answer.json()["text"]["text"] == TEXT
        endless = {**form(""), "content": preamble.encode() + b"y" * 100_000}
        refused = await client.post("/v1/judge", **endless)
        assert refused.status_code == 400 and refused.json()["reason"] == "MALFORMED_REQUEST"


async def test_complete_addresses_are_taken_in_the_request_line(tmp_path):
    async with an_api(tmp_path) as (court, _):
        port = int(court.http.rpartition(":")[2])
        body = json.dumps({"text": TEXT}).encode()

        async def ask(target, host, verb="POST"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"{verb} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            )
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = await reader.read()
            writer.close()
            return int(answer.split()[1])

        assert await ask(f"http://127.0.0.1:{port}/v1/judge", f"127.0.0.1:{port}") == 200
        assert await ask(f"HTTP://localhost:{port}/v1/judge", "other.example") == 200, "the address counts"
        assert await ask("http://localhost/v1/readyz?x=1", "localhost", "GET") == 200
        assert await ask(f"http://other.example:{port}/v1/judge", f"127.0.0.1:{port}") == 421
        assert await ask("http://localhost/v1/nowhere", "localhost") == 404
        assert await ask("http://localhost", "localhost", "GET") == 404
        assert await ask("ftp://localhost/v1/judge", "localhost") in (400, 404)


@pytest.mark.parametrize("prefix", ["DATA:image/png;base64,", "Data:image/PNG;BASE64,", "data:IMAGE/png;Base64,"])
async def test_schemes_of_data_addresses_have_no_case(tmp_path, prefix):
    async with an_api(tmp_path) as (_, client):
        answer = await client.post("/v1/judge", json={"image_url": prefix + ENCODED, "text": TEXT})
        assert answer.status_code == 200
        part = {"type": "image_url", "image_url": {"url": prefix + ENCODED}}
        assert (await client.post("/v1/moderations", json={"input": [part]})).status_code == 200


async def test_the_user_of_moderations_is_ignored(tmp_path):
    async with an_api(tmp_path) as (_, client):
        for user in ("ada", "", "user-" + "7" * 500):
            assert (await client.post("/v1/moderations", json={"input": TEXT, "user": user})).status_code == 200
        assert (await client.post("/v1/moderations", json={"input": TEXT, "user": 7})).status_code == 400


@pytest.mark.parametrize("key", ["post", "post-1", "k" * 128])
async def test_ids_of_further_moderation_inputs_leave_callers_ids_free(tmp_path, key):
    async with an_api(tmp_path) as (_, client):
        headers = {"idempotency-key": key}
        sent = {"input": ["one", "two", "three"]}
        answers = [await client.post("/v1/moderations", json=sent, headers=headers) for _ in range(2)]
        first, again = ([each["memecourt"]["verdict_id"] for each in answer.json()["results"]] for answer in answers)
        assert first == again and len(set(first)) == 3
        for name in (f"{key}-1"[-128:], f"{key}-2"[-128:]):
            answer = await client.post("/v1/judge", json={"text": "another", "request_id": name})
            assert answer.status_code == 200 and answer.json()["request_id"] == name
