"""Templates and the functions available in them. All values are escaped."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse

from serving.console import guard
from serving.console.registry import console_of, root_of
from serving.console.visitors import Role, Visitor
from serving.views.text import environment


def render(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Renders a page.

    Besides ``values`` a template gets ``request``, ``root`` (which every address of the console begins with),
    ``visitor`` (or None), ``proof`` (the forms' CSRF token), ``nav``, ``Role``, and ``starter``: True if verdicts rest
    on the starter library.
    """
    console = console_of(request)
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    common = {
        "request": request,
        "root": root_of(request),
        "visitor": visitor,
        "proof": console.sessions.proof(guard.cookie_of(request)),
        "nav": [page for page in console.pages if page.nav and visitor and page.role and visitor.role >= page.role],
        "Role": Role,
        "static": False,
        "starter": console.reviewing is not None and console.reviewing.starter,
    }
    return HTMLResponse(
        environment(__package__).get_template(template).render({**common, **values}), status_code=status
    )
