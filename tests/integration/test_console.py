"""The console as its users start it: in the gRPC server, and as a separate process on the same docket."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import closing

import pytest
from PIL import Image

from memecourt.client import Client
from tests.support.consoles import create_docket, form_proof_in, signed_in
from tests.support.dockets import events_of
from tests.support.server import HARMFUL, drawn

pytestmark = pytest.mark.integration


def sharp(visitor, trial_id, picture_id):
    """Unblurs a picture and returns it."""
    proof = form_proof_in(visitor.get(f"/trials/{trial_id}").text)
    page = visitor.post(f"/trials/{trial_id}/show", data={"proof": proof, "of": picture_id})
    address = re.search(r'src="([^"]*/sharp/[^"]*)"', page.text)[1]
    return Image.open(io.BytesIO(visitor.get(address).content)).convert("RGB")


def test_console_in_the_server_and_as_a_process_show_the_same_trial(start, home):
    server = start(None, "--console", "127.0.0.1:0").ready()
    in_server = server.wait_for(lambda line: line.startswith("console on ")).removeprefix("console on ")
    with Client(server.address) as court:
        response = court.judge(drawn(*HARMFUL), timeout=120)
    trial = response.verdict_id
    command = [sys.executable, "-m", "serving.cli", "console", "--address", "127.0.0.1:0", "--docket", server.docket]
    environment = {**os.environ, "MEMECOURT_HOME": str(home)}
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("console on ")
        precedent = response.precedents[0].id
        pictures = []
        for url in (in_server, line.strip().removeprefix("console on ")):
            with closing(signed_in(url)) as visitor:
                page = visitor.get(f"/trials/{trial}").text
                assert "<h1>Harmful</h1>" in page and precedent in page and "verified against" in page
                assert f"/trials/{trial}" in visitor.get("/").text
                pictures.append(
                    [sharp(visitor, trial, picture_id).tobytes() for picture_id in ("meme", f"precedent:{precedent}")]
                )
        assert pictures[0] == pictures[1], "both consoles show the same pictures"
        assert pictures[0][0] != pictures[0][1]
    finally:
        process.terminate()
        code = process.wait(120)
        process.stdout.close()
    assert code == 0
    # Both consoles write to one log who unblurred which picture.
    with closing(signed_in(in_server)) as visitor:
        assert visitor.get(f"/trials/{trial}").text.count("saw ") == 4
    assert server.end() == 0


def test_console_on_a_public_address_needs_a_file_of_tokens(home, tmp_path):
    docket = create_docket(tmp_path / "docket.sqlite", [events_of()])
    refused = subprocess.run(
        [sys.executable, "-m", "serving.cli", "console", "--address", "0.0.0.0:0", "--docket", str(docket)],
        capture_output=True,
        text=True,
        env={**os.environ, "MEMECOURT_HOME": str(home)},
        timeout=120,
    )
    assert refused.returncode == 1 and "a file of tokens" in " ".join(refused.stderr.split())
