"""The console as its users start it: beside gRPC, and as a process of its own over the same docket."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import closing

import httpx2
import pytest
from PIL import Image

from memecourt.client import Client
from tests.integration.test_server import HARMFUL, drawn
from tests.support.consoles import fill, proof_in
from tests.support.dockets import events_of

pytestmark = pytest.mark.integration


def signed_in(url):
    """A visitor of a console that asks nobody who they are."""
    visitor = httpx2.Client(base_url=url, follow_redirects=True, timeout=120)
    page = visitor.get("/sign-in")
    visitor.post("/sign-in", data={"proof": proof_in(page.text), "next": "/"})
    return visitor


def sharp(visitor, trial_id, what):
    """A picture that was asked for."""
    proof = proof_in(visitor.get(f"/trials/{trial_id}").text)
    shown = visitor.post(f"/trials/{trial_id}/show", data={"proof": proof, "of": what})
    address = re.search(r'src="([^"]*/sharp/[^"]*)"', shown.text)[1]
    return Image.open(io.BytesIO(visitor.get(address).content)).convert("RGB")


def test_a_trial_is_read_beside_grpc_and_in_a_process_of_its_own(start, home):
    server = start(None, "--console", "127.0.0.1:0").ready()
    beside = server.wait_for(lambda line: line.startswith("console on ")).removeprefix("console on ")
    with Client(server.address) as court:
        judged = court.judge(drawn(*HARMFUL), timeout=120)
    trial = judged.verdict_id
    command = [sys.executable, "-m", "serving.cli", "console", "--address", "127.0.0.1:0", "--docket", server.docket]
    environment = {**os.environ, "MEMECOURT_HOME": str(home)}
    alone = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        said = alone.stdout.readline()
        assert said.startswith("console on ")
        precedent = judged.precedents[0].id
        seen = []
        for url in (beside, said.strip().removeprefix("console on ")):
            with closing(signed_in(url)) as visitor:
                page = visitor.get(f"/trials/{trial}").text
                assert "<h1>Harmful</h1>" in page and precedent in page and "verified against" in page
                assert f"/trials/{trial}" in visitor.get("/").text
                seen.append([sharp(visitor, trial, what).tobytes() for what in ("meme", f"precedent:{precedent}")])
        assert seen[0] == seen[1], "both show the same pictures"
        assert seen[0][0] != seen[0][1]
    finally:
        alone.terminate()
        code = alone.wait(120)
        alone.stdout.close()
    assert code == 0
    # Who looked is in the one log that both write to.
    with closing(signed_in(beside)) as visitor:
        assert visitor.get(f"/trials/{trial}").text.count("saw ") == 4
    assert server.end() == 0


def test_others_are_not_let_in_without_tokens(home, tmp_path):
    place = fill(tmp_path / "docket.sqlite", [events_of()])
    asked = subprocess.run(
        [sys.executable, "-m", "serving.cli", "console", "--address", "0.0.0.0:0", "--docket", str(place)],
        capture_output=True,
        text=True,
        env={**os.environ, "MEMECOURT_HOME": str(home)},
        timeout=120,
    )
    assert asked.returncode == 1 and "a file of tokens" in " ".join(asked.stderr.split())
