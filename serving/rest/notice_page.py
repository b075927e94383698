"""The page behind a notice's link: shows that notice, and takes one objection from somebody without an account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from time import monotonic
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from court.errors import Unavailable
from serving.export.notice import notice_words, write_notice
from serving.rpc.convert import MOST_WHY
from serving.rpc.docket import DocketService

_PAGE = Template(Path(__file__).with_name("viewer").joinpath("notice.html").read_text("utf-8"))
_HEADERS = {
    "content-security-policy": "default-src 'none'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # The address is the only key to the notice.
    "referrer-policy": "no-referrer",
}
# A character of UTF-8 takes up to twelve bytes in a form.
_MOST_BYTES = 12 * MOST_WHY + 100
_OPENED_A_MINUTE = 60
"""Objections that a server takes in a minute, by all links together."""
_READ_A_MINUTE = 30
"""Requests that it answers in a minute by one link, since each reads a record."""


class NoticePage:
    """Answers the requests of links. Every link that opens nothing gets the same page."""

    def __init__(self, docket: DocketService) -> None:
        self._docket = docket
        self._minute = 0
        self._counts: Counter[str] = Counter()

    async def answer(self, request: Request) -> Response:
        """Shows the notice, or takes an objection to what it tells of."""
        try:
            return await self._answer(request)
        except Unavailable:
            return _page(503, "busy")

    async def _answer(self, request: Request) -> Response:
        opened = await self._docket.open_link(token := request.path_params["token"])
        if opened is None:
            return _page(404, "gone")
        record, language = opened
        if not self._allowed(token, _READ_A_MINUTE):
            return _page(429, "busy", languages=[language])
        words = notice_words()[language]
        if request.method == "POST":
            statement = await _statement(request)
            if statement:
                if not self._allowed("", _OPENED_A_MINUTE):
                    return _page(429, "busy", languages=[language])
                taken = await self._docket.object_to(record, statement)
                return _page(200, "received", languages=[language]) if taken else _page(404, "gone")
        text = write_notice(record, language, with_form=True)
        paragraphs = "".join(
            f"<p>{escape(part).replace(chr(10), '<br>')}</p>\n" for part in text.strip().split("\n\n")[1:]
        )
        refused = f"<p><strong>{words['words'].format(most=MOST_WHY)}</strong></p>" * (request.method == "POST")
        form = (
            f'{refused}<form method="post"><p><label>{escape(words["statement"])}<br>'
            f'<textarea name="statement" rows="8" cols="60" required maxlength="{MOST_WHY}"></textarea></label></p>'
            f"<p><button>{escape(words['send'])}</button></p></form>"
        )
        return _html(400 if refused else 200, language, words["title"], paragraphs + form)

    def _allowed(self, of: str, most: int) -> bool:
        """Counts a request; False if there were too many in this minute."""
        if (minute := int(monotonic() // 60)) != self._minute:
            self._minute, self._counts = minute, Counter()
        self._counts[of] += 1
        return self._counts[of] <= most


async def _statement(request: Request) -> str:
    """Returns the statement of a form; empty if there is none, or it is too long."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            return ""
    try:
        fields = parse_qs(body.decode("ascii"), strict_parsing=True, errors="strict", max_num_fields=1)
    except ValueError:
        return ""
    statement = fields.get("statement", [""])[0].replace("\r\n", "\n").strip()
    return statement if len(statement) <= MOST_WHY and "\0" not in statement else ""


def _page(status: int, name: str, *, languages: Iterable[str] = ()) -> Response:
    """Returns a page of one sentence, in all languages where that of the reader is not known."""
    chosen = list(languages) or list(notice_words())
    body = "\n".join(f'<p lang="{each}">{escape(notice_words()[each][name])}</p>' for each in chosen)
    return _html(status, chosen[0], notice_words()[chosen[0]]["title"], body)


def _html(status: int, language: str, title: str, body: str) -> Response:
    page = _PAGE.substitute(language=language, title=escape(title), body=body)
    return HTMLResponse(page, status, headers=_HEADERS)
