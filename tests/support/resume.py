"""Helpers of tests of resume."""

import asyncio

from tests.support.cast import Cast, task_of


def ahead_of_time():
    """A cast whose Accuser finishes its first summary only after those of rounds 2 and 3 are written and stored."""
    cast = Cast(rounds=3)
    original_reply = cast.models["accuser"].reply
    written = asyncio.Event()

    async def reply(request, *, within_s):
        number = questions_in(request) if task_of(request) == "summarise" else 0
        if number == 1:
            await written.wait()
            for _ in range(50):
                await asyncio.sleep(0)
        summary_reply = await original_reply(request, within_s=within_s)
        if number == 3:
            written.set()
        return summary_reply

    object.__setattr__(cast.models["accuser"], "reply", reply)
    return cast


def questions_in(request):
    return sum("Question " in part for part in request.parts)
