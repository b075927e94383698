"""Try a meme: a trial off the record, in the namespace ``sandbox``, which unfolds on its own page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadInput, BadRequest, CourtError, NotLoaded, Unavailable
from court.events import Procedure
from court.record import TrialRecord
from serving.access.callers import SANDBOX, NotAllowed
from serving.console.pictures import path_of
from serving.console.registry import Page, Trying, console_of, form_of, redirect, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.visitors import Role
from serving.docket.errors import TrialUnknown
from serving.export.source import read_document
from serving.judging.request import TrialRequest
from serving.views.trial_view import view_of


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


@cache
def _examples() -> Mapping[str, TrialRecord]:
    """Trials of the drawn memes of `memecourt demo`, by the names of the memes."""
    lines = files("serving.console").joinpath("examples.jsonl").read_text("utf-8").splitlines()
    return {record.trial_id: record for record in map(read_document, lines)}


async def example_picture(request: Request) -> Response:
    """Returns the picture of a drawn example, which is tame and is shown as it is."""
    name = request.path_params["name"]
    if name not in _examples():
        raise TrialUnknown("There is no such example.", field="name")
    picture = files("retrieval.starter").joinpath("demo", f"{name}.png").read_bytes()
    return Response(picture, media_type="image/png")


async def put_on_record(request: Request) -> Response:
    """Starts a new trial of a try's meme, on the record in a namespace of the visitor's choice."""
    record, namespace = await trial_of(request), form_of(request).get("namespace", "").strip()
    meme, text = record.opened.meme, record.text
    if meme.namespace != SANDBOX or namespace == SANDBOX or len(namespace) > 128:
        raise BadRequest("A try is put on record in another namespace than its own.", field="namespace")
    trying = _trying(request, namespace)
    image = b""
    if meme.picture_given:
        frames = await console_of(request).docket.trials.frames(meme.pixels_sha256)
        image = request.state.picture or (frames[0] if len(frames) == 1 else b"")
    # What is stored of an animation is not its file.
    if meme.picture_given and not image:
        raise BadRequest("The file of this try is not stored: choose it again.", field="picture")
    if request.state.picture and sha256(image).hexdigest() != meme.bytes_sha256:
        raise BadRequest("That is another file than the one that was tried.", field="picture")
    trial_request = TrialRequest(
        image,
        text=text.text if text is not None and meme.text_given else None,
        procedure=record.opened.procedure,
        namespace=namespace,
    )
    return redirect(request, path_of(await trying.start(trial_request)))


def _trying(request: Request, namespace: str) -> Trying:
    visitor, trying = visitor_of(request), console_of(request).trying
    if trying is None:
        # No fault of the server: the page offers no form where there is no court.
        raise BadRequest(
            "This console has no court: start it with --server, or use `memecourt serve --console`.",
            reason="COURT_MISSING",
        )
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
    examples = () if trying else [(record, view_of(record)) for record in _examples().values()]
    return render(
        request, "try.html", status=status, examples=examples, procedures=trying.procedures if trying else (), **values
    )


PAGES = (
    Page("/try", try_form, role=Role.VIEWER, name="try", nav="Try a meme"),
    Page("/try", try_meme, role=Role.VIEWER, methods=("POST",), files=True),
    Page("/try/examples/{name}", example_picture, role=Role.VIEWER),
    Page("/trials/{trial_id}/put-on-record", put_on_record, role=Role.VIEWER, methods=("POST",), files=True),
)
