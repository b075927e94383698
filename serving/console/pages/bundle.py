"""A trial with its proofs, to be handed over and checked elsewhere."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from court.errors import NotLoaded
from serving.console.registry import Page, console_of, trial_of
from serving.console.review.parts import note_told
from serving.console.visitors import Role
from serving.docket.audit.audit import bundled
from serving.docket.store.sql import SqlDocket


async def bundle(request: Request) -> Response:
    """The bundle that ``memecourt docket bundle`` writes, without who looked at the picture.

    Raises:
        DocketError: The docket's private key is not here: nothing can be signed.
    """
    record, docket = await trial_of(request), console_of(request).docket
    if not isinstance(docket, SqlDocket):
        raise NotLoaded("This docket has no log that could be proven.")
    text = await bundled(docket, record.trial_id)
    await note_told(request, await docket.record(record.trial_id))  # as it is by now: the bundle may hold more
    headers = {"content-disposition": 'attachment; filename="trial.bundle.json"'}
    return Response(text, media_type="application/json", headers=headers)


PAGES = (Page("/trials/{trial_id}/bundle", bundle, role=Role.VIEWER, name="bundle"),)
