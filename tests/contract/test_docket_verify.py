"""Tampering with a docket: exactly the detectable alterations are detected, in SQLite and in PostgreSQL."""

import asyncio
import inspect
import itertools
import random
from collections import Counter

import pytest

from court.events import TrialOpened
from memecourt.verify import verify_bundle, verify_receipt
from serving.docket.log.notes import VerifierKey
from serving.docket.open import Docket
from tests.support.dockets import NOON, append_all, parse_place, random_records
from tests.support.sizes import FULL
from tests.support.tampering import ALTERATIONS, Detectability, Tamperer, check_docket, drawn, scene_of, tampering


@pytest.mark.promise("AU-1", "2,000 alterations each in SQLite and PostgreSQL: all found")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40 if FULL else 1))
async def test_random_alterations_are_detected_exactly_when_detectable(docket_place, seed):
    """Checks each alteration with and without an external checkpoint. 2,000 per database in the nightly run."""
    rounds = 50
    chance = random.Random(seed)
    applied: Counter[str] = Counter()
    docket = Docket.open(parse_place(docket_place))
    try:
        altered = await scene_of(docket, chance, place=parse_place(docket_place))
        with tampering(altered) as connection:
            for anchors in ((), (altered.anchor,)):
                clean = await check_docket(altered, connection, anchors)
                assert not clean.counts and not clean.unchecked, clean.findings
                assert clean.erased > 2 and clean.size > clean.anchored == (altered.anchored if anchors else 0)
        for name in itertools.cycle(ALTERATIONS):
            if sum(applied.values()) >= rounds:
                break
            with tampering(altered) as connection:
                hand = Tamperer(altered, connection, chance)
                try:
                    made = getattr(hand, name)()
                    can_be: Detectability | None = await made if inspect.isawaitable(made) else made
                    if can_be is None:
                        continue  # by chance nothing changed
                    applied[name] += 1
                    for anchors, expected in (((), can_be.alone), ((altered.anchor,), can_be.anchored)):
                        report = await check_docket(altered, connection, anchors)
                        assert report.violated == expected, (name, bool(anchors), report.findings[:3])
                        assert not report.unchecked
                finally:
                    for undo in hand.files:
                        undo()
    finally:
        await docket.close()
    # PostgreSQL enforces every column's type.
    assert set(ALTERATIONS) - set(applied) <= {"alter_type"}


async def test_verification_finds_no_fault_during_writes_and_erasures(docket_place):
    """Checks, bundles and receipts each see one moment of the log, and all are valid."""
    chance = random.Random(4)
    seen, grown = asyncio.Event(), asyncio.Event()

    async def write(docket, number):
        # The second half waits for a check that saw some of the first, the last event for two checks of different
        # sizes: so checks fall between writes, however fast either are.
        if number >= 12:
            await (grown if number == 23 else seen).wait()
        events = random_records(chance, 1, NOON)[0]
        opened, picture = events[0], drawn(number)
        assert isinstance(opened, TrialOpened)
        meme = opened.meme.model_copy(update={"pixels_sha256": picture.pixels_sha256})
        await docket.writer.keep_picture(picture)
        await append_all(docket, [opened.model_copy(update={"meme": meme}), *events[1:]])
        if number % 3 == 0:
            await docket.reviews.record_access(opened.trial_id, who="ada", what="frame 0", at=NOON)
        if number % 4 == 0:
            await docket.eraser.erase(opened.trial_id, who="ada", why="asked to", at=NOON)
        return opened.trial_id

    docket = Docket.open(parse_place(docket_place))
    try:
        key = VerifierKey.parse(await docket.log.vkey())
        writing = asyncio.gather(*(write(docket, number) for number in range(24)))
        sizes = []
        while not writing.done():
            report = await docket.auditor.audit([key])
            assert not report.counts, report.findings
            sizes.append(report.size)
            if report.size:
                seen.set()
            if len(set(sizes)) > 1:
                grown.set()
        last = await docket.auditor.audit([key])
        assert not last.counts and last.trials == 24 and last.erased
        assert len(set(sizes)) > 1  # writes happened meanwhile
        for trial_id in writing.result():
            trial = verify_bundle(await docket.auditor.bundle(trial_id), [str(key)])
            assert trial.checkpoint.size == last.size
            if any(entry.kind == "VerdictGiven" for entry in trial.entries):
                receipt = await docket.log.receipt(trial_id)
                shown = verify_receipt(
                    [str(key)],
                    checkpoint=receipt.checkpoint,
                    entry=receipt.number,
                    header=receipt.header,
                    proof=receipt.proof,
                    trial_id=trial_id,
                )
                assert shown.header in {entry.header for entry in trial.entries}
    finally:
        await docket.close()
