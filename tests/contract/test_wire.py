"""Wire compatibility with the first release: messages of either version mean the same to the other.

``proto/first_release.binpb`` is its contract, compiled: the ``court.proto`` of release 0.1.0 in a folder with our
``buf.yaml``, then ``buf build --exclude-source-info -o first_release.binpb``. It never changes.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.json_format import MessageToDict

from memecourt.v1 import court_pb2 as wire
from tests.support.fake_court import FakeCourt, Refusal, served
from tests.support.paths import ROOT
from tests.support.wire import PACKAGE, fill, kind

PROTO = ROOT / "proto"
BUF = Path(sys.executable).parent / "buf"
ROUNDS = 40


def first_release():
    """Returns a separate pool: one pool can't hold two descriptors of the same name."""
    files = descriptor_pb2.FileDescriptorSet.FromString((PROTO / "first_release.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


OLD = first_release()
NEW = wire.DESCRIPTOR.pool
MESSAGES = sorted(OLD.FindFileByName("memecourt/v1/court.proto").message_types_by_name)


def as_json(message):
    """Returns a message's contents by field name."""
    return MessageToDict(message, preserving_proto_field_name=True)


def restrict_to(descriptor, contents):
    """Returns the part of a message's contents that an older contract can express."""
    fields = descriptor.fields_by_name
    restricted = {}
    for name, part in contents.items():
        if name not in fields:
            continue
        field = fields[name]
        nested = field.message_type
        if nested and nested.full_name.startswith(PACKAGE) and not nested.GetOptions().map_entry:
            part = [restrict_to(nested, one) for one in part] if field.is_repeated else restrict_to(nested, part)
        elif field.enum_type:
            old_values = field.enum_type.values_by_name
            numbers = NEW.FindEnumTypeByName(field.enum_type.full_name).values_by_name
            each = [
                one if one in old_values else numbers[one].number for one in (part if field.is_repeated else [part])
            ]
            part = each if field.is_repeated else each[0]
        restricted[name] = part
    return restricted


def test_the_first_release_s_contract_is_unchanged():
    assert MESSAGES == [
        "Content", "JudgeRequest", "JudgeResponse", "JudgedText", "Library", "Picture", "PolicyReference", "Precedent",
        "Review", "Strengths", "Timings", "Versions",
    ]  # fmt: skip
    (service,) = OLD.FindFileByName("memecourt/v1/court.proto").services_by_name.values()
    assert (service.full_name, [method.name for method in service.methods]) == ("memecourt.v1.Court", ["Judge"])


@pytest.mark.parametrize("name", MESSAGES)
def test_old_messages_survive_a_round_trip_through_today_s_code(name):
    chance = random.Random(name)
    for _ in range(ROUNDS):
        old = fill(kind(OLD, name)(), chance)
        new = kind(NEW, name).FromString(old.SerializeToString())
        assert as_json(new) == as_json(old)
        assert kind(OLD, name).FromString(new.SerializeToString()) == old


@pytest.mark.parametrize("name", MESSAGES)
def test_new_messages_are_understood_by_an_old_client_as_far_as_possible(name):
    chance = random.Random(name)
    for _ in range(ROUNDS):
        new = fill(kind(NEW, name)(), chance)
        old = kind(OLD, name).FromString(new.SerializeToString())
        assert as_json(old) == restrict_to(old.DESCRIPTOR, as_json(new))
        # Unknown fields pass through it unchanged.
        assert kind(NEW, name).FromString(old.SerializeToString()) == new


def test_the_new_fields_are_unknown_to_the_first_release():
    """Otherwise the test above would show nothing."""
    old, new = (kind(pool, "JudgeResponse").DESCRIPTOR.fields_by_name for pool in (OLD, NEW))
    assert {"reused_from", "near_duplicates"} <= set(new) - set(old)
    assert "REVIEW_REASON_NEAR_DUPLICATE_HARMFUL" not in OLD.FindEnumTypeByName(PACKAGE + "ReviewReason").values_by_name


def test_an_unknown_enum_value_never_reads_as_not_harmful():
    later = kind(NEW, "JudgeResponse")(label=77)
    old = kind(OLD, "JudgeResponse").FromString(later.SerializeToString())
    assert old.label == 77 and old.label != wire.LABEL_NOT_HARMFUL


async def test_an_old_client_calls_today_s_server():
    """Over a socket, with the old classes on one side and today's code on the other: a verdict and a refusal."""
    request = fill(kind(OLD, "JudgeRequest")(), random.Random(1))

    def answer(method, message, number):
        if message.image == b"refuse":
            raise Refusal("INVALID_ARGUMENT", reason="PICTURE_DAMAGED")
        return fill(wire.JudgeResponse(), random.Random(2))

    court = FakeCourt(answer)

    with served(court) as address:
        async with grpc.aio.insecure_channel(address) as channel:
            judge = channel.unary_unary(
                "/memecourt.v1.Court/Judge",
                request_serializer=kind(OLD, "JudgeRequest").SerializeToString,
                response_deserializer=kind(OLD, "JudgeResponse").FromString,
            )
            response = await judge(request, timeout=60)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await judge(kind(OLD, "JudgeRequest")(image=b"refuse"), timeout=60)
            refused = refused.value.code()
    assert as_json(court.asked[0]) == as_json(request)
    assert as_json(response) == restrict_to(response.DESCRIPTOR, as_json(fill(wire.JudgeResponse(), random.Random(2))))
    assert refused is grpc.StatusCode.INVALID_ARGUMENT


def run_buf_breaking(folder, tmp_path):
    """Runs buf's check of the contract in a folder against that of the first release."""
    return subprocess.run(
        [BUF, "breaking", "--against", PROTO / "first_release.binpb"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "BUF_CACHE_DIR": str(tmp_path / "cache")},
    )


def test_buf_finds_no_breaking_change(tmp_path):
    result = run_buf_breaking(PROTO, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("  bytes image = 3;", "  bytes image = 93;", "image"),
        ("  bytes image = 3;", "  string image = 3;", "image"),
        ("  LABEL_UNDECIDED = 3;", "  LABEL_OPEN = 3;", "LABEL_UNDECIDED"),
        ("  rpc Judge(JudgeRequest)", "  rpc Try(JudgeRequest)", "Judge"),
        ("  string rationale = 8;", "  reserved 8;", "rationale"),
    ],
)
def test_buf_detects_breaking_changes(tmp_path, before, after, expected):
    place = tmp_path / "memecourt/v1"
    place.mkdir(parents=True)
    shutil.copy(PROTO / "buf.yaml", tmp_path)
    contract = (PROTO / "memecourt/v1/court.proto").read_text()
    assert before in contract
    (place / "court.proto").write_text(contract.replace(before, after, 1))
    result = run_buf_breaking(tmp_path, tmp_path)
    assert result.returncode == 100, result.stdout + result.stderr
    assert expected in result.stdout


def test_timestamps_survive_the_wire():
    """The test above does not fill timestamps, as their type is Google's: one arrives as it was sent."""
    at = timestamp_pb2.Timestamp(seconds=1, nanos=5)
    new = kind(NEW, "JudgeResponse")(decided_at=at)
    old = kind(OLD, "JudgeResponse").FromString(new.SerializeToString())
    assert (old.decided_at.seconds, old.decided_at.nanos) == (1, 5)
