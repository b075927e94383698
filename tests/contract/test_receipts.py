"""Every verdict that is returned over gRPC carries a receipt, which can be verified without the service."""

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
from tests.support.scenes import IMAGE, a_scene


def verify(response: wire.JudgeResponse, key: str) -> alone.Logged:
    """Verifies the receipt of a response and returns its contents."""
    receipt = response.receipt
    return alone.verify_receipt(
        [key],
        checkpoint=receipt.checkpoint,
        entry=receipt.entry,
        header=receipt.header,
        proof=receipt.proof,
        trial_id=response.verdict_id,
    )


def request_for(text: str, request_id: str = "") -> wire.JudgeRequest:
    return wire.JudgeRequest(image=IMAGE, text=text, request_id=request_id)


def test_every_verdict_has_a_receipt_even_if_it_is_reused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with a_scene(tmp_path, reuse="namespace") as scene:
            key = await scene.docket.log.vkey()
            first = await scene.stub.Judge(request_for("one", "r1"))
            logged = verify(first, key)
            # Repeated by the same request id, by others, and by a request answered from memory.
            for again in ("r1", "r2", "r3", "r4"):
                response = await scene.stub.Judge(request_for("one", again))
                assert response.verdict_id == first.verdict_id and verify(response, key) == logged
            second = await scene.stub.Judge(request_for("two", "r5"))
            assert verify(second, key).number > logged.number

            async def requests():
                for number in range(3):
                    yield wire.JudgeStreamRequest(request=request_for(f"text {number}", f"s{number}"))

            numbers = set()
            async for response in scene.stub.JudgeStream(requests()):
                assert response.HasField("verdict")
                numbers.add(verify(response.verdict, key).number)
            assert len(numbers) == 3
            other = VerifierKey("another", b"\x01" * 32)
            with pytest.raises(alone.Violated):
                verify(first, str(other))

    asyncio.run(scene())


@pytest.mark.slow
def test_receipts_as_json_are_verified_by_command_and_are_anchors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client's stored receipts serve as checkpoints: with them, an exported trial is proven to be the one judged."""
    answers, keys, bundle = tmp_path / "answers.jsonl", tmp_path / "key", tmp_path / "bundle.json"

    async def scene() -> None:
        async with a_scene(tmp_path) as scene:
            key = await scene.docket.log.vkey()
            keys.write_text(f"{key}\n")
            responses = [await scene.stub.Judge(request_for(f"text {number}")) for number in range(3)]
            lines = [json_format.MessageToJson(response, indent=None) + "\n" for response in responses]
            answers.write_text("".join(lines))
            (tmp_path / "one.json").write_text(json_format.MessageToJson(responses[0]))
            bundle.write_text(await scene.docket.auditor.bundle(responses[1].verdict_id))
            anchor = read_anchor(answers)
            assert len(anchor.notes) == 3
            report = await scene.docket.auditor.audit([VerifierKey.parse(key)], [anchor])
            assert report.anchors == 3 and not report.unchecked
            # The scene's pictures are fakes, everything else is intact.
            assert {str(fault) for fault in report.counts} == {"PICTURE_DIFFERS"}
            assert report.anchored == max(alone.open_checkpoint(note, [key]).size for note in anchor.notes)

    asyncio.run(scene())
    assert alone.main([str(tmp_path / "one.json"), "--key", str(keys)]) == 0
    assert alone.main([str(answers), "--key", str(keys)]) == 0
    assert alone.main([str(bundle), "--key", str(keys), "--receipt", str(answers)]) == 0
    assert "receipts  1 agree" in capsys.readouterr().out
    # A response with another response's receipt is rejected.
    first, second = (json.loads(line) for line in answers.read_text().splitlines()[:2])
    (tmp_path / "swapped.json").write_text(json.dumps({**first, "receipt": second["receipt"]}))
    assert alone.main([str(tmp_path / "swapped.json"), "--key", str(keys)]) == 1
