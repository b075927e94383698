"""The decoding pool: shared decodes, fair queueing, and quarantine of pictures that crash a worker."""

import asyncio

import pytest

from court.digests import digest_of_file
from court.errors import BadPicture
from serving.judging.decode import DecodingPool, Quarantine
from serving.judging.request import size_of
from tests.support.reception import Pictures


async def test_concurrent_readers_share_one_decode_that_outlives_its_first_caller():
    pictures = Pictures()
    pictures.gate = asyncio.Event()
    decoders = DecodingPool(pictures, Quarantine(None), 1)
    file = await digest_of_file(b"file")
    waiting = [asyncio.ensure_future(decoders.read(b"file", file, name)) for name in "abc"]
    await asyncio.sleep(0)
    assert file in decoders._decoding
    waiting[0].cancel()  # the caller that started it
    await asyncio.sleep(0)
    pictures.gate.set()
    decoded = await asyncio.gather(*waiting[1:])
    assert pictures.decoded == 1 and file not in decoders._decoding
    assert decoded[0].picture is decoded[1].picture and [each.seconds for each in decoded] == [0, 0]


async def test_namespaces_share_decoders_fairly():
    pictures = Pictures()
    pictures.gate = asyncio.Event()
    decoders = DecodingPool(pictures, Quarantine(None), 1)

    async def read(data, namespace):
        return await decoders.read(data, await digest_of_file(data), namespace)

    flood = [asyncio.ensure_future(read(b"%d" % number, "flood")) for number in range(20)]
    while not pictures.decoded:  # noqa: ASYNC110
        await asyncio.sleep(0)
    late = asyncio.ensure_future(read(b"late", "late"))
    await asyncio.sleep(0)
    pictures.gate.set()
    await asyncio.gather(late, *flood)
    assert pictures.started.index(b"late") <= 2


@pytest.mark.parametrize("reason", ["PICTURE_KILLS_READER", "PICTURE_TOO_COSTLY"])
async def test_picture_that_killed_a_worker_is_quarantined_for_all_callers(reason):
    pictures = Pictures()
    pictures.errors[b"poison"] = BadPicture("no", reason=reason)
    quarantine = Quarantine(None)
    decoders = DecodingPool(pictures, quarantine, 1)
    reasons = []
    for name in "abc":
        with pytest.raises(BadPicture) as caught:
            async with decoders.picture(b"poison", name):
                raise AssertionError("it was decoded")
        reasons.append(caught.value.reason)
    assert reasons == [reason, "QUARANTINED", "QUARANTINED"] and pictures.decoded == 1
    with pytest.raises(BadPicture):  # the quarantine applies to trials too
        quarantine.require(await digest_of_file(b"poison"), text_given=True)


async def test_decoded_picture_counts_towards_memory_while_in_use():
    counted = []
    decoders = DecodingPool(Pictures(), Quarantine(None), 1, memory=counted.append)
    with pytest.raises(ZeroDivisionError):
        async with decoders.picture(b"file", "a") as picture:
            assert counted == [size_of(picture)] and counted[0] > 0
            raise ZeroDivisionError
    assert sum(counted) == 0
