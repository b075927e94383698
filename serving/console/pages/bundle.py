"""A trial with its proofs, to be handed over and checked elsewhere."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.console.registry import Page, console_of, trial_of
from serving.console.review.parts import note_verdict_shown
from serving.console.visitors import Role


async def bundle(request: Request) -> Response:
    """The bundle that ``memecourt docket bundle`` writes, without who looked at the picture.

    Raises:
        DocketError: The docket's private key is not here: nothing can be signed.
    """
    record, console = await trial_of(request), console_of(request)
    text = await console.auditor.bundle(record.trial_id)
    await note_verdict_shown(
        request, await console.trials.record(record.trial_id)
    )  # as it is by now: the bundle may hold more
    # A download and no page: it contains what strangers wrote, and pages here have our cookies.
    headers = {"content-disposition": 'attachment; filename="trial.bundle.json"'}
    return Response(text, media_type="application/json", headers=headers)


PAGES = (Page("/trials/{trial_id}/bundle", bundle, role=Role.VIEWER, name="bundle"),)
