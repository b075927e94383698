"""Try a meme: a trial off the record, in the namespace ``sandbox``, which unfolds on its own page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadInput, BadRequest, CourtError, NotLoaded, Unavailable
from court.events import Procedure
from serving.access.callers import SANDBOX, NotAllowed
from serving.console.pictures import path_of
from serving.console.registry import Page, Trying, console_of, form_of, redirect, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.visitors import Role
from serving.judging.request import TrialRequest


async def try_form(request: Request) -> Response:
    """Shows the form for a try, or says why there is none."""
    return _form(request)


async def try_meme(request: Request) -> Response:
    """Starts a trial of the picture or text that was sent, and opens its page."""
    trying, form = _trying(request, SANDBOX), form_of(request)
    try:
        trial_request = TrialRequest(
            request.state.picture,
            text=form.get("text", "").strip() or None,
            procedure=_procedure(form.get("procedure", "")),
            namespace=SANDBOX,
        )
        return redirect(request, path_of(await trying.start(trial_request)))
    except (BadInput, NotLoaded, Unavailable) as error:
        return _form(request, error)


async def put_on_record(request: Request) -> Response:
    """Starts a new trial of a try's meme, on the record in a namespace of the visitor's choice."""
    record, namespace = await trial_of(request), form_of(request).get("namespace", "").strip()
    meme, text = record.opened.meme, record.text
    if meme.namespace != SANDBOX or namespace == SANDBOX or len(namespace) > 128:
        raise BadRequest("A try is put on record in another namespace than its own.", field="namespace")
    trying = _trying(request, namespace)
    frames = await console_of(request).docket.trials.frames(meme.pixels_sha256) if meme.picture_given else ()
    # What is stored of an animation is not its file.
    if meme.picture_given and len(frames) != 1:
        raise BadRequest("The file of this try is not stored: send it again.", field="picture")
    trial_request = TrialRequest(
        frames[0] if frames else b"",
        text=text.text if text is not None and meme.text_given else None,
        procedure=record.opened.procedure,
        namespace=namespace,
    )
    return redirect(request, path_of(await trying.start(trial_request)))


def _trying(request: Request, namespace: str) -> Trying:
    visitor, trying = visitor_of(request), console_of(request).trying
    if trying is None:
        # No fault of the server: the page offers no form where there is no court.
        raise BadRequest("This console has no court: `memecourt serve --console` serves both.", reason="COURT_MISSING")
    if not visitor.judges:
        raise NotAllowed("Your token has no scope judge, which a trial needs.", reason="SCOPE_MISSING")
    if not visitor.sees(namespace):
        raise NotAllowed("Your token is not for content of that namespace.", reason="NAMESPACE_NOT_ALLOWED")
    return trying


def _procedure(name: str) -> Procedure:
    if name not in Procedure.__members__:
        raise BadRequest("Choose a procedure.", field="procedure")
    return Procedure(name)


def _form(request: Request, fault: CourtError | None = None) -> Response:
    missing = ""
    try:
        _trying(request, SANDBOX)
    except CourtError as error:
        missing = error.message
    form = form_of(request)
    status = 200 if fault is None else 400 if isinstance(fault, BadInput) else 503
    trying = console_of(request).trying
    values = {"missing": missing, "fault": fault, "text": form.get("text", ""), "chosen": form.get("procedure", "")}
    return render(request, "try.html", status=status, procedures=trying.procedures if trying else (), **values)


PAGES = (
    Page("/try", try_form, role=Role.VIEWER, name="try", nav="Try a meme"),
    Page("/try", try_meme, role=Role.VIEWER, methods=("POST",), files=True),
    Page("/trials/{trial_id}/put-on-record", put_on_record, role=Role.VIEWER, methods=("POST",)),
)
