"""Download of a trial with its proofs, for verification elsewhere."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from serving.console.registry import Page, console_of, trial_of
from serving.console.review.parts import mark_verdict_shown
from serving.console.visitors import Role


async def bundle(request: Request) -> Response:
    """Returns the bundle that ``memecourt docket bundle`` writes, without the names of those who viewed the picture.

    Raises:
        DocketError: The docket's private key is not available here, so nothing can be signed.
    """
    record, console = await trial_of(request), console_of(request)
    text = await console.auditor.bundle(record.trial_id)
    await mark_verdict_shown(
        request, await console.trials.record(record.trial_id)
    )  # reread: the bundle may contain newer events
    # Sent as a download, not a page: it contains untrusted text, and pages of this origin have our cookies.
    headers = {"content-disposition": 'attachment; filename="trial.bundle.json"'}
    return Response(text, media_type="application/json", headers=headers)


PAGES = (Page("/trials/{trial_id}/bundle", bundle, role=Role.VIEWER, name="bundle"),)
