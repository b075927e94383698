"""Fuzzing: each malformed request gets a typed answer that reveals nothing of the machine, and harms no other call.

10,000 requests with ``MEMECOURT_FULL=1``, fewer without; they are the same in each run.
"""

import asyncio
import os
import random
import re
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from tests.support.paths import ROOT
from tests.support.playing import until
from tests.support.real_court import IMAGE, real_court
from tests.support.sizes import FULL
from tests.support.wire import fill, kind

COUNT = 10_000 if FULL else 1_500
AT_ONCE = 16
WITHIN_S = 60
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in wire.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
REFUSALS = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED",
}  # fmt: skip
"""Allowed codes for nonsense. Not: INTERNAL, UNKNOWN, UNAVAILABLE, DEADLINE_EXCEEDED."""
NASTY = (
    "", "\x00", "a" * 200_000, "../../../../etc/hosts", "'; DROP TABLE trials; --", "%s%n%x", "{0.__class__}",
    "<script>", "<|im_start|>system", "\u202eabc", "\ud7ff\U0010ffff", "0", "-1", "null", "\n\r\t", "é" * 65, "-" * 129,
)  # fmt: skip


def seed_requests(trial_id):
    """Returns a valid request for each method; they change little."""
    signed = {"who": "ada", "why": "as was decided"}
    judged = judge_request(IMAGE, text="cat dog", namespace="n", content_id="c")
    return {
        "Judge": judged,
        "JudgeStream": wire.JudgeStreamRequest(request=judge_request(IMAGE, text="cat", request_id="s")),
        "WatchTrial": wire.WatchTrialRequest(trial_id=trial_id),
        "GetVerdict": wire.GetVerdictRequest(trial_id=trial_id),
        "GetTrial": wire.GetTrialRequest(trial_id=trial_id),
        "ListTrials": wire.ListTrialsRequest(page_size=2, filter=wire.TrialFilter(namespace="n")),
        "ExportTrials": wire.ExportTrialsRequest(filter=wire.TrialFilter(labels=[wire.LABEL_HARMFUL], reviewed=True)),
        "ReviewVerdict": wire.ReviewVerdictRequest(
            trial_id=trial_id, outcome=wire.REVIEW_OUTCOME_UPHELD, reason="seen", reviewer="ada"
        ),
        "OpenAppeal": wire.OpenAppealRequest(trial_id=trial_id, statement="It is satire.", reference="7", by="ada"),
        "GetNotice": wire.GetNoticeRequest(trial_id=trial_id, language="de"),
        "WatchReviews": wire.WatchReviewsRequest(from_entry=0, overruled_only=True),
        "ListChanges": wire.ListChangesRequest(entry=3, page_size=2),
        "SearchPrecedents": wire.SearchPrecedentsRequest(text="cat", image=IMAGE, k=3),
        "AddPrecedent": wire.AddPrecedentRequest(text="cat", label=wire.LABEL_HARMFUL, **signed),
        "RemovePrecedent": wire.RemovePrecedentRequest(id="nobody", **signed),
        "RelabelPrecedent": wire.RelabelPrecedentRequest(id="drawn-0", label=wire.LABEL_HARMFUL, **signed),
        "GetLibrary": wire.GetLibraryRequest(),
    }


# Wire format


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number, form, body):
    """Encodes a field; ``form`` 2 is preceded by its length."""
    return varint(number << 3 | form) + (varint(len(body)) + body if form == 2 else body)


def fields_of(data):
    """Returns number, form and body of each field of a well-formed message."""
    found, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        start = at
        if tag & 7 == 0:
            number()
        elif tag & 7 == 2:
            length = number()
            start = at
            at += length
        else:
            at += 8 if tag & 7 == 1 else 4
        found.append((tag >> 3, tag & 7, data[start:at]))
    return found


def any_value(chance, depth=0):
    """Returns a field's form and a body that fits it, for any field."""
    form = chance.choice([0, 1, 2, 2, 2, 5])
    if form == 0:
        return 0, varint(chance.choice([0, 1, 2, 77, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1]))
    if form in (1, 5):
        return form, chance.choice([b"\x00", b"\xff", b"\x7f"]) * (8 if form == 1 else 4)
    text = chance.choice([*(one.encode() for one in NASTY), b"\xff\xfe\xfd", b"\xc0\x80", bytes(chance.randbytes(9))])
    if depth < 60 and chance.random() < 0.3:
        inner_form, inner = any_value(chance, depth + 1)
        text = field(chance.randint(1, 9), inner_form, inner)
    return 2, text


def mutated(data, chance):
    """Mutates a well-formed message as a faulty or hostile client might."""
    kind_of_change = chance.randrange(12)
    if kind_of_change == 0:
        return chance.randbytes(chance.choice([1, 2, 10, 100, 5000]))
    if kind_of_change == 1 and data:
        changed = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind_of_change == 2:
        return data[: chance.randint(0, len(data))]
    if kind_of_change == 3:
        return data + chance.choice([data, b"\x00", b"\xff" * 11, field(1, 2, b"x")[:-1], b"\x0b" * 200])
    if kind_of_change == 4:
        return field(chance.choice([1, 3, 500, 2**28]), 2, b"")[:-1] + varint(2**31 - 1)  # too long
    if kind_of_change == 5:
        deep = b""
        for _ in range(chance.choice([5, 99, 101, 500])):
            deep = field(chance.randint(1, 3), 2, deep)
        return data + deep
    fields = fields_of(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(fields) + 1)
        if kind_of_change == 6 and fields:
            fields.pop(chance.randrange(len(fields)))
        elif kind_of_change == 7 and fields:
            fields.insert(place, chance.choice(fields))
        elif kind_of_change == 8:
            fields.insert(place, (chance.choice([*range(1, 13), 500, 2**28]), *any_value(chance)))
        elif kind_of_change == 9 and fields:
            number = chance.choice(fields)[0]
            fields.insert(place, (number, *any_value(chance)))
        else:
            chance.shuffle(fields)
            fields += [(number, 2, chance.choice(NASTY).encode()) for number, form, _ in fields[:2] if form == 2]
    return b"".join(field(*one) for one in fields)


def any_request(method, seed, chance):
    """Returns a message as bytes: filled with random values, or mutated."""
    if chance.random() < 0.2:
        message = fill(kind(wire.DESCRIPTOR.pool, method.input_type.name)(), chance)
        if chance.random() < 0.7:
            message.MergeFrom(seed)
        return message.SerializeToString()
    return mutated(seed.SerializeToString(), chance)


METADATA = (
    (), (), (),
    (("traceparent", "00-" + "f" * 32 + "-" + "0" * 16 + "-01"),),
    (("traceparent", "x" * 2000),),
    (("authorization", "Bearer ../../x"), ("authorization", "Basic AAAA")),
    (("grpc-timeout-x", "1"), ("bytes-bin", b"\x00\xff" * 50)),
)  # fmt: skip


# Checking the answers


class Findings:
    def __init__(self, path):
        self.codes = Counter()
        self.wrong = []
        places = [str(path), str(ROOT), sys.prefix, str(Path.home()), os.uname().nodename]
        words = [re.escape(place) for place in places if len(place) > 2]
        words += ["site-packages", "Traceback", r'File "', "0x[0-9a-f]{6}", "object at", "sqlite", "sqlalchemy"]
        words += [r"\.py\b", r"127\.0\.0\.1", r"Error\b\("]
        self.leak = re.compile("|".join(words), re.IGNORECASE)

    def check(self, holds, problem, request):
        if not holds:
            self.wrong.append((problem, request[:200]))

    def check_text(self, text, request):
        """Checks a message for people."""
        self.check(not self.leak.search(text), f"reveals the machine: {text[:300]}", request)
        self.check(len(text) < 2000, f"too long: {text[:100]}", request)

    def check_refusal(self, error, request):
        name = error.code().name
        self.codes[name] += 1
        self.check(name in REFUSALS, f"refused with {name}: {error.details()}", request)
        status = rpc_status.from_call(error)
        self.check(status is not None, f"{name} without details: {error.details()}", request)
        infos, bad = [], []
        for packed in status.details if status else ():
            for message_type, found in ((error_details_pb2.ErrorInfo, infos), (error_details_pb2.BadRequest, bad)):
                message = message_type()
                if packed.Unpack(message):
                    found.append(message)
        self.check([info.domain for info in infos] == ["memecourt.v1"], f"{name} with {len(infos)} ErrorInfo", request)
        self.check(all(re.fullmatch(r"[A-Z][A-Z_]+", info.reason) for info in infos), f"reason {infos}", request)
        if name == "INVALID_ARGUMENT":
            self.check(len(bad) == 1, f"{name} names no field: {error.details()}", request)
        self.check_text(str(status), request)

    def check_failure(self, failure, request):
        """Checks an error returned as a value."""
        code = next((code.name for code in grpc.StatusCode if code.value[0] == failure.code), "")
        self.codes[f"value {code}"] += 1
        self.check(code in REFUSALS and failure.reason, f"a failure {failure}", request)
        self.check_text(str(failure), request)


async def ask(it, found, name, method, messages, metadata):
    """Makes one call of any form and checks its outcome."""
    answer = kind(wire.DESCRIPTOR.pool, method.output_type.name)
    request = b" ".join(messages)
    try:
        if method.client_streaming:
            for data in await asyncio.to_thread(read_all, it.threads.stream_stream(name), messages, metadata):
                if (response := answer.FromString(data)).HasField("failure"):
                    found.check_failure(response.failure, request)
        elif method.server_streaming:
            call = it.channel.unary_stream(name)(messages[0], timeout=WITHIN_S, metadata=metadata)
            responses = 0
            async for data in call:
                answer.FromString(data)
                responses += 1
                if responses == (1 if method.name == "WatchReviews" else 20):  # it never ends
                    call.cancel()  # the first responses suffice
                    break
        else:
            answer.FromString(await it.channel.unary_unary(name)(messages[0], timeout=WITHIN_S, metadata=metadata))
        found.codes["OK"] += 1
    except grpc.RpcError as error:
        found.check_refusal(error, request)


def read_all(stream, messages, metadata):
    """Returns all answers of a stream. With threads: grpc.aio reports INTERNAL if a stream ends while it sends."""
    responses = list(stream(iter(messages), timeout=WITHIN_S, metadata=metadata))
    assert len(responses) <= len(messages)
    return responses


async def fuzz(path, count):
    async with real_court(path) as it:
        first = await it.judge.Judge(judge_request(IMAGE, text="cat bird", request_id="first"), timeout=WITHIN_S)
        seed_by_method, found = seed_requests(first.verdict_id), Findings(path)
        assert {method.name for method in METHODS.values()} == set(seed_by_method)
        for name, method in METHODS.items():  # the seeds themselves are answered
            whole = Findings(path)
            await ask(it, whole, name, method, [seed_by_method[method.name].SerializeToString()], ())
            assert not whole.wrong and set(whole.codes) <= {"OK", "NOT_FOUND", "INVALID_ARGUMENT"}, (name, whole.codes)
        chance = random.Random(20261122)
        todo = iter(range(count))

        async def send_some():
            for _ in todo:
                name, method = chance.choice(list(METHODS.items()))
                seed = seed_by_method[method.name]
                several = chance.randint(1, 3) if method.client_streaming else 1
                messages = [any_request(method, seed, chance) for _ in range(several)]
                await ask(it, found, name, method, messages, chance.choice(METADATA))

        before = len(asyncio.all_tasks())
        await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))
        health = health_pb2_grpc.HealthStub(it.channel)
        well = await health.Check(health_pb2.HealthCheckRequest(service="memecourt.v1.Court"), timeout=WITHIN_S)
        again = await it.judge.Judge(judge_request(IMAGE, text="cat bird", request_id="first"), timeout=WITHIN_S)
        other = await it.judge.Judge(judge_request(IMAGE, text="dog", try_anew=True), timeout=WITHIN_S)
        record = await it.records.GetTrial(wire.GetTrialRequest(trial_id=other.verdict_id), timeout=WITHIN_S)
        with suppress(TimeoutError):  # tasks that end beside their call
            await until(lambda: len(asyncio.all_tasks()) <= before and not it.court.memory.bytes_in_use, 60)
        left = (
            len(asyncio.all_tasks()) - before,
            it.court.memory.bytes_in_use,
            it.reception.admission.running,
            it.reception.admission.waiting,
        )
        return found, well.status, first, again, other, record, left


@pytest.mark.promise("GR-2", "10,000 fuzzed requests, 0 faults")
@pytest.mark.slow
def test_malformed_requests_get_typed_answers_and_the_server_survives(tmp_path):
    found, status, first, again, other, record, left = asyncio.run(fuzz(tmp_path, COUNT))
    assert not found.wrong, f"{len(found.wrong)}: {found.wrong[:10]}"
    assert status == health_pb2.HealthCheckResponse.SERVING
    assert again.verdict_id == first.verdict_id != other.verdict_id
    assert record.trial.summary.state == wire.TRIAL_STATE_DECIDED
    assert left[0] <= 0 and left[1:] == (0, 0, 0), f"tasks, bytes, running, waiting: {left}"
    # Otherwise the test shows nothing: some requests must succeed, and some be refused for various reasons.
    assert found.codes["OK"] > COUNT / 20 and found.codes["INVALID_ARGUMENT"] > COUNT / 20, found.codes
    assert sum(found.codes[name] for name in ("OK", *REFUSALS)) == COUNT, found.codes
