"""Helpers of tests of http."""

import gzip
from contextlib import asynccontextmanager

import httpx2

from tests.support.real_court import real_court


def url_of(server):
    return server.wait_for(lambda line: "http on http" in line).split("http on ")[1].strip()


@asynccontextmanager
async def an_api(path, **settings):
    async with (
        real_court(path, http="127.0.0.1:0", **settings) as court,
        httpx2.AsyncClient(base_url=court.http, trust_env=False, timeout=120) as client,
    ):
        yield court, client


def reason(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["type"].endswith(body["reason"])
    return body["reason"]


BOMB = gzip.compress(b"\0" * 64 * 2**20)
