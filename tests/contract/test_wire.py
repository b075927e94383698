"""The wire as the first release had it: its messages mean the same to today's code, and today's to it.

``proto/first_release.binpb`` is its contract, compiled: the ``court.proto`` of release 0.1.0 in a folder with our
``buf.yaml``, then ``buf build --exclude-source-info -o first_release.binpb``. It never changes.
"""

import asyncio
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict

from memecourt.v1 import court_pb2 as wire
from tests.contract.fake_court import FakeCourt, Refusal, served

PROTO = Path(__file__).resolve().parents[2] / "proto"
BUF = Path(sys.executable).parent / "buf"
PACKAGE = "memecourt.v1."
ROUNDS = 40


def first_release():
    """A pool of its own: two descriptors of one name can't be in the same."""
    files = descriptor_pb2.FileDescriptorSet.FromString((PROTO / "first_release.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


OLD = first_release()
NEW = wire.DESCRIPTOR.pool
MESSAGES = sorted(OLD.FindFileByName("memecourt/v1/court.proto").message_types_by_name)


def kind(pool, name):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(PACKAGE + name))


def fill(message, chance, *, depth=0):
    """Gives every field a value that is not its default, drawn so that no two rounds are the same."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof and len(field.containing_oneof.fields) > 1 and chance.random() < 0.5:
            continue  # one of several: the last one set stands
        count = chance.randint(1, 3) if field.is_repeated else 1
        if field.message_type and field.message_type.GetOptions().map_entry:
            values = getattr(message, field.name)
            for number in range(count):
                values[f"k{number}{chance.random()}"] = f"v{chance.random()}"
        elif field.message_type:
            if depth > 4:
                continue
            for _ in range(count):
                part = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
                part.SetInParent()
                fill(part, chance, depth=depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(value(field, chance) for _ in range(count))
        else:
            setattr(message, field.name, value(field, chance))
    return message


def value(field, chance):
    if field.enum_type:
        return chance.choice([v.number for v in field.enum_type.values if v.number])
    whole = chance.randint(1, 999_999_999)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return f"{whole}".encode() + b"\xff\x00"
    values = {
        FieldDescriptor.CPPTYPE_STRING: f"a string, {whole}: ü",
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_DOUBLE: whole / 7,
    }
    return values.get(field.cpp_type, whole)


def as_json(message):
    """What a message says, field by field, by name."""
    return MessageToDict(message, preserving_proto_field_name=True)


def known_to(descriptor, said):
    """Of what a message says, that which an older contract has words for."""
    fields = descriptor.fields_by_name
    kept = {}
    for name, part in said.items():
        if name not in fields:
            continue
        field = fields[name]
        nested = field.message_type
        if nested and nested.full_name.startswith(PACKAGE) and not nested.GetOptions().map_entry:
            part = [known_to(nested, one) for one in part] if field.is_repeated else known_to(nested, part)
        elif field.enum_type:
            known = field.enum_type.values_by_name
            numbers = NEW.FindEnumTypeByName(field.enum_type.full_name).values_by_name
            each = [one if one in known else numbers[one].number for one in (part if field.is_repeated else [part])]
            part = each if field.is_repeated else each[0]
        kept[name] = part
    return kept


def test_the_first_release_is_what_it_was():
    assert MESSAGES == [
        "Content", "JudgeRequest", "JudgeResponse", "JudgedText", "Library", "Picture", "PolicyReference", "Precedent",
        "Review", "Strengths", "Timings", "Versions",
    ]  # fmt: skip
    (service,) = OLD.FindFileByName("memecourt/v1/court.proto").services_by_name.values()
    assert (service.full_name, [method.name for method in service.methods]) == ("memecourt.v1.Court", ["Judge"])


@pytest.mark.parametrize("name", MESSAGES)
def test_what_an_old_client_says_is_understood_and_comes_back_whole(name):
    chance = random.Random(name)
    for _ in range(ROUNDS):
        said = fill(kind(OLD, name)(), chance)
        heard = kind(NEW, name).FromString(said.SerializeToString())
        assert as_json(heard) == as_json(said)
        assert kind(OLD, name).FromString(heard.SerializeToString()) == said


@pytest.mark.parametrize("name", MESSAGES)
def test_what_today_s_code_says_is_understood_by_an_old_client_as_far_as_it_has_words(name):
    chance = random.Random(name)
    for _ in range(ROUNDS):
        said = fill(kind(NEW, name)(), chance)
        heard = kind(OLD, name).FromString(said.SerializeToString())
        assert as_json(heard) == known_to(heard.DESCRIPTOR, as_json(said))
        # What it has no words for passes through it unharmed.
        assert kind(NEW, name).FromString(heard.SerializeToString()) == said


def test_the_new_parts_are_indeed_unknown_to_the_first_release():
    """Else the test above would say nothing."""
    old, new = (kind(pool, "JudgeResponse").DESCRIPTOR.fields_by_name for pool in (OLD, NEW))
    assert {"reused_from", "near_duplicates"} <= set(new) - set(old)
    assert "REVIEW_REASON_NEAR_DUPLICATE_HARMFUL" not in OLD.FindEnumTypeByName(PACKAGE + "ReviewReason").values_by_name


def test_an_enum_value_of_a_later_version_is_no_acquittal():
    later = kind(NEW, "JudgeResponse")(label=77)
    heard = kind(OLD, "JudgeResponse").FromString(later.SerializeToString())
    assert heard.label == 77 and heard.label != wire.LABEL_NOT_HARMFUL


def test_an_old_client_calls_today_s_server():
    """Through a socket, with the old classes on one side and today's code on the other, verdict and refusal."""
    request = fill(kind(OLD, "JudgeRequest")(), random.Random(1))

    def answer(method, asked, number):
        if asked.image == b"refuse":
            raise Refusal("INVALID_ARGUMENT", reason="PICTURE_DAMAGED")
        return fill(wire.JudgeResponse(), random.Random(2))

    court = FakeCourt(answer)

    async def work(address):
        async with grpc.aio.insecure_channel(address) as channel:
            judge = channel.unary_unary(
                "/memecourt.v1.Court/Judge",
                request_serializer=kind(OLD, "JudgeRequest").SerializeToString,
                response_deserializer=kind(OLD, "JudgeResponse").FromString,
            )
            response = await judge(request, timeout=60)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await judge(kind(OLD, "JudgeRequest")(image=b"refuse"), timeout=60)
            return response, refused.value.code()

    with served(court) as address:
        response, refused = asyncio.run(work(address))
    assert as_json(court.asked[0]) == as_json(request)
    assert as_json(response) == known_to(response.DESCRIPTOR, as_json(fill(wire.JudgeResponse(), random.Random(2))))
    assert refused is grpc.StatusCode.INVALID_ARGUMENT


def breaking(folder, tmp_path):
    """What buf has against the contract in a folder, given that of the first release."""
    return subprocess.run(
        [BUF, "breaking", "--against", PROTO / "first_release.binpb"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "BUF_CACHE_DIR": str(tmp_path / "cache")},
    )


def test_buf_finds_nothing_broken(tmp_path):
    checked = breaking(PROTO, tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("  bytes image = 3;", "  bytes image = 93;", "image"),
        ("  bytes image = 3;", "  string image = 3;", "image"),
        ("  LABEL_UNDECIDED = 3;", "  LABEL_OPEN = 3;", "LABEL_UNDECIDED"),
        ("  rpc Judge(JudgeRequest)", "  rpc Try(JudgeRequest)", "Judge"),
        ("  string rationale = 8;", "  reserved 8;", "rationale"),
    ],
)
def test_buf_would_find_what_breaks_an_old_client(tmp_path, before, after, told):
    place = tmp_path / "memecourt/v1"
    place.mkdir(parents=True)
    shutil.copy(PROTO / "buf.yaml", tmp_path)
    contract = (PROTO / "memecourt/v1/court.proto").read_text()
    assert before in contract
    (place / "court.proto").write_text(contract.replace(before, after, 1))
    checked = breaking(tmp_path, tmp_path)
    assert checked.returncode == 100, checked.stdout + checked.stderr
    assert told in checked.stdout


def test_times_are_google_s_own():
    """Not ours to fill above with anything: a timestamp that was said is the one that is heard."""
    at = timestamp_pb2.Timestamp(seconds=1, nanos=5)
    said = kind(NEW, "JudgeResponse")(decided_at=at)
    heard = kind(OLD, "JudgeResponse").FromString(said.SerializeToString())
    assert (heard.decided_at.seconds, heard.decided_at.nanos) == (1, 5)
