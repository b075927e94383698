"""Every verdict that leaves over gRPC carries a receipt, which is checked without the service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from google.protobuf import json_format

import memecourt.verify as alone
from memecourt.v1 import court_pb2 as wire
from serving.docket.log.anchors import read_anchor
from serving.docket.log.notes import VerifierKey
from tests.contract.scenes import IMAGE, a_scene


def shown(response: wire.JudgeResponse, key: str) -> alone.Logged:
    """What the receipt of a response shows."""
    receipt = response.receipt
    return alone.verify_receipt(
        [key],
        checkpoint=receipt.checkpoint,
        entry=receipt.entry,
        header=receipt.header,
        proof=receipt.proof,
        trial_id=response.verdict_id,
    )


def asked(text: str, request_id: str = "") -> wire.JudgeRequest:
    return wire.JudgeRequest(image=IMAGE, text=text, request_id=request_id)


def test_every_verdict_has_one_also_where_it_is_given_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with a_scene(tmp_path, reuse="namespace") as scene:
            key = await scene.docket.log.vkey()
            first = await scene.stub.Judge(asked("one", "r1"))
            logged = shown(first, key)
            # Again by the same name, by another, and by the same request that is answered from memory.
            for again in ("r1", "r2", "r3", "r4"):
                response = await scene.stub.Judge(asked("one", again))
                assert response.verdict_id == first.verdict_id and shown(response, key) == logged
            second = await scene.stub.Judge(asked("two", "r5"))
            assert shown(second, key).number > logged.number

            async def requests():
                for number in range(3):
                    yield wire.JudgeStreamRequest(request=asked(f"text {number}", f"s{number}"))

            numbers = set()
            async for response in scene.stub.JudgeStream(requests()):
                assert response.HasField("verdict")
                numbers.add(shown(response.verdict, key).number)
            assert len(numbers) == 3
            other = VerifierKey("another", b"\x01" * 32)
            with pytest.raises(alone.Violated):
                shown(first, str(other))

    asyncio.run(scene())


@pytest.mark.slow
def test_a_receipt_as_json_is_checked_by_command_and_is_an_anchor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the client keeps speaks for the docket: with it, a trial that is handed over is the one that was judged."""
    answers, keys, bundle = tmp_path / "answers.jsonl", tmp_path / "key", tmp_path / "bundle.json"

    async def scene() -> None:
        async with a_scene(tmp_path) as scene:
            key = await scene.docket.log.vkey()
            keys.write_text(f"{key}\n")
            responses = [await scene.stub.Judge(asked(f"text {number}")) for number in range(3)]
            lines = [json_format.MessageToJson(response, indent=None) + "\n" for response in responses]
            answers.write_text("".join(lines))
            (tmp_path / "one.json").write_text(json_format.MessageToJson(responses[0]))
            bundle.write_text(await scene.docket.auditor.bundle(responses[1].verdict_id))
            anchor = read_anchor(answers)
            assert len(anchor.notes) == 3
            report = await scene.docket.auditor.audit([VerifierKey.parse(key)], [anchor])
            assert report.anchors == 3 and not report.unchecked
            # Pictures of this scene are made up, all else is as it has to be.
            assert {str(fault) for fault in report.counts} == {"PICTURE_DIFFERS"}
            assert report.anchored == max(alone.open_checkpoint(note, [key]).size for note in anchor.notes)

    asyncio.run(scene())
    assert alone.main([str(tmp_path / "one.json"), "--key", str(keys)]) == 0
    assert alone.main([str(answers), "--key", str(keys)]) == 0
    assert alone.main([str(bundle), "--key", str(keys), "--receipt", str(answers)]) == 0
    assert "receipts  1 agree" in capsys.readouterr().out
    # A response whose receipt was exchanged for another's does not pass.
    first, second = (json.loads(line) for line in answers.read_text().splitlines()[:2])
    (tmp_path / "swapped.json").write_text(json.dumps({**first, "receipt": second["receipt"]}))
    assert alone.main([str(tmp_path / "swapped.json"), "--key", str(keys)]) == 1
