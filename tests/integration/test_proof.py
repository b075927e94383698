"""Verdicts of a real server can be verified with its public key and the receipts it issued."""

import json
import shutil

from click.testing import CliRunner
from google.protobuf import json_format

import memecourt.verify as verifier
from memecourt.client import Client
from serving.cli.main import cli
from serving.docket.log.anchors import read_anchor
from tests.support.server import HARMFUL, HARMLESS, drawn


def memecourt(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_verdicts_verify_from_receipts_bundles_and_the_whole_docket(start, tmp_path):
    server = start().ready()
    docket, key, receipts = ("--docket", server.docket), tmp_path / "key", tmp_path / "receipts.jsonl"
    key.write_text(memecourt("docket", "key", *docket).stdout)
    with Client(server.address) as court:
        memes = (HARMFUL, HARMLESS, HARMFUL)
        responses = [court.judge(drawn(*meme), text=meme[1], timeout=120).message for meme in memes]
    assert responses[2].reused_from.verdict_id == responses[0].verdict_id
    receipts.write_text("".join(json_format.MessageToJson(r, indent=None) + "\n" for r in responses))
    assert verifier.main([str(receipts), "--key", str(key)]) == 0

    def verified(*anchors):
        options = [option for anchor in anchors for option in ("--anchor", anchor)]
        result = memecourt("docket", "verify", "--key", key, *options, "--json", *docket)
        return result.exit_code, json.loads(result.stdout)

    # While it serves: the receipts cover every entry before them.
    status, report = verified(receipts)
    assert (status, report["outcome"], report["trials"], report["pictures"]) == (0, "clean", 2, 2), report
    assert report["anchored"] > 0 and report["anchors"] >= 2
    shutil.copytree(server.docket.parent, tmp_path / "yesterday")
    with Client(server.address) as court:
        last = court.judge(drawn(*HARMLESS, seed=5), text="Soup for everybody from Blueland", timeout=120)

    # After an orderly stop the external anchor has the newest checkpoint, which covers all entries.
    assert server.end() == 0
    status, report = verified(receipts, server.anchor)
    assert (status, report["outcome"], report["unanchored"]) == (0, "clean", 0), report
    assert len(read_anchor(server.anchor).notes) >= 2

    out = tmp_path / "trial.json"
    assert memecourt("docket", "bundle", last.verdict_id, "-o", out, *docket).exit_code == 0
    trial = verifier.verify_bundle(out.read_text(), [key.read_text()])
    assert trial.last("VerdictGiven")["verdict"]["rationale"] == last.rationale

    # An old copy of the docket is consistent in itself, but not with the external anchor.
    docket = ("--docket", tmp_path / "yesterday" / server.docket.name)
    assert verified()[0] == 0
    status, report = verified(server.anchor)
    assert status == 1 and set(report["faults"]) == {"TAIL_MISSING"}
