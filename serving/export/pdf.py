"""One trial as a PDF to be printed and filed."""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from court.display import split_hidden, word
from court.errors import BadRequest, NotLoaded
from court.events import (
    AnyEvent,
    AppealOpened,
    NearDuplicatesFound,
    PrecedentsCited,
    SecondOpinionAsked,
    Side,
    VerdictReviewed,
)
from court.precedents import Precedent
from serving.export.source import ExportSource, Pictures
from serving.views.blur import blurred
from serving.views.event_text import Fact, Headline, Piece, Speech, pieces_of, similarities
from serving.views.messages import PictureShown, messages_of
from serving.views.text import kind, seconds
from serving.views.trial_view import TrialView, view_of

if TYPE_CHECKING:
    from fpdf import FPDF

_MARGIN = 18.0  # millimetres
_LINE = 5.2
# Those that fpdf2 takes. A file is looked at before: one that is no font makes it leave other files open.
_FONT_ENDINGS = (".ttf", ".otf", ".ttc", ".otc", ".otb", ".woff", ".woff2")
_FONT_BEGINNINGS = (b"\x00\x01\x00\x00", b"true", b"OTTO", b"ttcf", b"wOFF", b"wOF2")
_SHAPED = "\u0300"
"""Below it, in Unicode, every letter stands for itself."""
_INK, _SOFT, _MARK = (29, 27, 25), (93, 88, 82), (150, 90, 0)


def pdf(
    source: ExportSource,
    *,
    pictures: Pictures = Pictures.VEILED,
    messages: bool = False,
    fonts: Sequence[Path] = (),
    now: datetime | None = None,
) -> bytes:
    """The file.

    Args:
        pictures: Form of its pictures. With SHARP they stand veiled in their places, and sharp on pages of their own at
            the end: nobody comes upon them unasked.
        messages: True to include the messages sent to models, at the end.
        fonts: Further font files, for scripts that the packaged fonts lack.
        now: Time of the export, UTC.

    Raises:
        NotLoaded: The package that makes PDFs is not installed.
        BadRequest: A font file is not there, or is none.
    """
    # All of it within the block: fonts are cut to the used glyphs when the file is put out, and read once more for it.
    with font_files(fonts) as (main, bold, others):
        paper = _Paper(_open(main, bold, others, title=source.record.trial_id, now=now or datetime.now(UTC)))
        _write_trial(paper, source, view_of(source.record), pictures=pictures, now=now or datetime.now(UTC))
        if messages:
            _messages(paper, source)
        # Behind everything else, so that the record can be read without coming upon them.
        if pictures is Pictures.SHARP:
            _sharp(paper, source)
        return bytes(paper.pdf.output())


def _open(main: Path, bold: Path, others: Sequence[Path], *, title: str, now: datetime) -> FPDF:
    try:
        from fpdf import FPDF
    except ModuleNotFoundError as error:
        # A package that fpdf2 itself misses is another fault, and the advice below would not mend it.
        if (error.name or "").partition(".")[0] != "fpdf":
            raise
        raise NotLoaded(
            "PDFs need fpdf2. Install it with: pip install 'memecourt[export]'.", reason="EXPORT_NOT_LOADED"
        ) from None
    # It warns of tables in fonts that it leaves out: none that anybody would miss.
    logging.getLogger("fontTools.subset").setLevel(logging.ERROR)
    made = FPDF(format="A4")
    made.set_margins(_MARGIN, _MARGIN, _MARGIN)
    made.set_auto_page_break(True, _MARGIN)
    made.add_font(FAMILY, "", main)
    made.add_font(FAMILY, "B", bold)
    for number, path in enumerate(others):
        made.add_font(f"more{number}", "", path)
    # Not the exact style: the further fonts have no bold, and a letter in regular is better than none.
    made.set_fallback_fonts([f"more{number}" for number in range(len(others))], exact_match=False)
    made.set_title(f"Trial {title}")
    made.set_creator("MemeCourt")
    made.set_lang("en")
    made.set_creation_date(now)
    made.add_page()
    return made


class _Paper:
    """Writes on a PDF, from top to bottom."""

    def __init__(self, pdf: FPDF) -> None:
        self.pdf = pdf

    def heading(self, text: str, level: int = 1) -> None:
        size = {0: 18, 1: 13, 2: 11}[level]
        self.pdf.ln(2 if level == 2 else 5)
        # Room for a line or two below it, so that no heading stands alone at the foot of a page.
        if self.pdf.will_page_break(20):
            self.pdf.add_page()
        self._write(text, size=size, bold=True)
        self.pdf.ln(size * 0.5)

    def line(self, text: str, *, soft: bool = False) -> None:
        self._write(text, size=9 if soft else 10, colour=_SOFT if soft else _INK)
        self.pdf.ln(_LINE)

    def fact(self, name: str, value: object) -> None:
        self._write(f"{name}: ", size=9.5, colour=_SOFT)
        self._write(str(value), size=9.5)
        self.pdf.ln(_LINE)

    def quote(self, text: str, size: float = 10) -> None:
        """Prints quoted speech, with a bar beside it."""
        before = self.pdf.l_margin
        # By the margin, which also holds for lines that are wrapped and for a new page.
        self.pdf.set_left_margin(before + 5)
        self.pdf.set_x(before + 5)
        self._write(text, size=size)
        self.pdf.ln(_LINE)
        self.pdf.set_left_margin(before)
        self.pdf.set_x(before)
        self.pdf.ln(1)

    def picture(self, png: bytes, width: float) -> None:
        self.pdf.image(io.BytesIO(png), w=width)
        self.pdf.ln(2)

    def events(self, *events: AnyEvent | None, pictures: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Prints the text of the events that exist; precedents with these veiled pictures."""
        for event in events:
            if event is not None:
                self.line(f"Event {event.seq}: {kind(event.kind)}", soft=True)
                for piece in pieces_of(event):
                    self._piece(piece, pictures)

    def _piece(self, piece: Piece, pictures: Mapping[str, bytes]) -> None:
        match piece:
            case Headline(text=text):
                self.line(text)
            case Fact(name=name, value=value):
                if value:
                    self.fact(name.capitalize(), value)
            case Speech(text=text):
                self.quote(text)
            case Precedent():
                self.heading(f"{piece.id}: {word(piece.label)}", 2)
                if piece.id in pictures:
                    self.picture(blurred(pictures[piece.id]), 25)
                self.quote(piece.text)
                filed = f"  filed under {', '.join(piece.categories)}" if piece.categories else ""
                self.line(f"{similarities(piece)}{filed}", soft=True)
            case str():
                self.line(piece, soft=True)

    def _write(self, text: str, *, size: float, bold: bool = False, colour: tuple[int, int, int] = _INK) -> None:
        for piece, ours in printed(text, self.pdf):
            # What stands for hidden characters is smaller and in another colour: no text of a meme can imitate it.
            self.pdf.set_font(FAMILY, "B" if bold else "", size * (0.75 if ours else 1))
            self.pdf.set_text_color(*(_MARK if ours else colour))
            # Shaping joins letters and orders what is written from right to left; it is ten times as slow.
            self.pdf.set_text_shaping(not piece.isascii() and max(piece) >= _SHAPED)
            self.pdf.write(size * 0.5, f"[{piece}]" if ours else piece)


def _write_trial(paper: _Paper, exported: ExportSource, view: TrialView, *, pictures: Pictures, now: datetime) -> None:
    record, opened = exported.record, exported.record.opened
    paper.heading(view.outcome.title, 0)
    paper.fact("Trial", record.trial_id)
    paper.fact("Opened", f"{opened.at:%Y-%m-%d %H:%M:%S} UTC")
    paper.fact("Took", seconds(record.seconds))
    paper.events(view.verdict_event, *view.transcript.failures)
    for event in record.events:
        if isinstance(event, VerdictReviewed | SecondOpinionAsked | AppealOpened):
            paper.heading(kind(event.kind).capitalize())
            paper.events(event)
    for differences in view.differences.values():
        for one in differences:
            paper.line(f"Worked out again, {one.what} is {one.found}; event {one.seq} says {one.recorded}.")
    paper.heading("The meme")
    if not opened.meme.picture_given:
        paper.line("No picture was sent: the text was judged alone.", soft=True)
    for png in () if pictures is Pictures.NONE else exported.frames:
        paper.picture(blurred(png), 40)
    if pictures is Pictures.VEILED and exported.frames:
        paper.line("Veiled: small, grey, without detail. The file holds no more of it than this.", soft=True)
    source = {"CALLER": "given by the caller", "OCR": "read off the picture", "NONE": "there is none"}
    paper.heading(f"Text, {source[view.transcript.source]}" if view.transcript.source else "Text", 2)
    paper.quote(view.transcript.text or "–")
    if view.transcript.description:
        paper.heading("Description", 2)
        paper.quote(view.transcript.description)
    _sides(paper, view)
    paper.heading("Precedents")
    for event in record.events:
        if isinstance(event, PrecedentsCited | NearDuplicatesFound):
            paper.events(event, pictures={} if pictures is Pictures.NONE else exported.precedents)
    if view.transcript.claims_found:
        paper.heading("Claims of fact, checked by an expert witness")
        paper.events(view.transcript.claims_found, *(one.settled for one in view.claims))
    if view.transcript.guard:
        paper.heading("A guard model")
        paper.events(view.transcript.guard)
    if view.transcript.ruling:
        paper.heading("The Judge")
        for name, text in (
            ("Evidence of harm", view.transcript.ruling.harmful_evidence),
            ("Evidence of none", view.transcript.ruling.harmless_evidence),
        ):
            paper.heading(name, 2)
            _messages_page(paper, text)
        for id_, reading in view.readings.items():
            paper.fact(f"Precedent {id_} supports", reading)
    for ruled in view.transcript.panel:
        paper.heading(f"Judge {ruled.judge} of the panel", 2)
        paper.events(ruled)
    # Behind the Judge, and apart: no label of harm follows from them.
    if view.questions:
        paper.heading("Further questions, asked after the verdict")
        paper.events(*view.questions)
    _costs(paper, view)
    paper.heading("What it was held with")
    paper.events(opened)
    if exported.receipt is not None:
        paper.heading("Where it stands in the docket")
        paper.line(f"The verdict is entry {exported.receipt.number} of a log that the docket signed:")
        paper.quote(exported.receipt.checkpoint, 8)
    paper.pdf.ln(4)
    paper.line(
        f"Exported {now:%Y-%m-%d %H:%M} UTC from a docket of MemeCourt. This is a copy: the record is the docket's.",
        soft=True,
    )


def _messages_page(paper: _Paper, lines: Iterable[str]) -> None:
    empty = True
    for one in lines:
        paper.quote(one)
        empty = False
    if empty:
        paper.quote("–")


def _sides(paper: _Paper, view: TrialView) -> None:
    if not any(view.transcript.arguments.values()) and not view.transcript.rounds:
        return
    paper.heading("The two sides")
    for side in Side:
        argument = view.transcript.arguments[side]
        if argument:
            rested = f"; it rested: {argument.rested}" if argument.rested else ""
            paper.heading(f"{side.capitalize()}: what it went to the Judge with{rested}", 2)
            paper.quote(argument.justification)
    for one in view.transcript.rounds:
        for side in Side:
            turn = one.turns[side]
            if turn is not None:
                ahead = " (held ahead: the verdict does not rest on it)" if turn.ahead else ""
                paper.heading(f"Round {one.number}, {side.lower()}{ahead}", 2)
                paper.events(turn.asked, turn.answered, turn.summed)


def _costs(paper: _Paper, view: TrialView) -> None:
    if not view.steps:
        return
    paper.heading("What it took")
    costs = view.costs
    paper.line(
        f"{costs.calls} model calls, {costs.tokens_in:,} tokens in ({costs.cached_share:.0%} cached), "
        f"{costs.tokens_out:,} out",
        soft=True,
    )
    for step in view.steps:
        call = step.call
        tokens = f"; {call.tokens_in:,} in, {call.tokens_cached:,} cached, {call.tokens_out:,} out" if call else ""
        paper.line(f"{step.seq:>3}  {step.name}: at {step.begin:.1f} s for {seconds(step.seconds)}{tokens}", soft=True)


def _messages(paper: _Paper, source: ExportSource) -> None:
    paper.pdf.add_page()
    paper.heading("The messages sent to models")
    for event in source.record.events:
        for made in messages_of(source.record, event):
            exact = "exactly as sent" if made.exact else "not shown to be as sent"
            paper.heading(f"Event {event.seq}: {word(made.call.role)}, {made.call.prompt_id} – {exact}", 2)
            if made.why:
                paper.line(made.why)
            for request in made.requests:
                paper.line("System message", soft=True)
                paper.quote(request.system, 8)
                paper.line("User message", soft=True)
                for part in request.parts:
                    paper.quote(_picture(part) if isinstance(part, PictureShown) else part.rstrip("\n"), 8)


def _picture(shown: PictureShown) -> str:
    owner = f"the meme, frame {shown.frame}" if shown.owner == "meme" else f"precedent {shown.owner}"
    return f"(picture of {owner}, sha256:{shown.sha256 or 'not kept'})"


def _sharp(paper: _Paper, source: ExportSource) -> None:
    """Prints each judged picture unveiled, on a page of its own behind one that says so."""
    shown = [("the meme", png) for png in source.frames]
    shown += [(f"precedent {id_}", png) for id_, png in source.precedents.items()]
    if not shown:
        return
    paper.pdf.add_page()
    paper.heading("On the pages that follow, pictures stand as they were judged.")
    for what, png in shown:
        paper.pdf.add_page()
        paper.line(what)
        paper.pdf.image(io.BytesIO(png), w=paper.pdf.epw, h=paper.pdf.eph - 20, keep_aspect_ratio=True)


FAMILY = "text"
_PACKAGED = ("figo", "symbol2", "math")
"""Where the main font has no glyph, these are asked in turn; names of the package ``pymupdf-fonts``."""
_MAIN, _BOLD = "notos", "notosbo"
_OF_EMOJI = "\ufe0e\ufe0f"


@contextmanager
def font_files(more: Sequence[Path] = ()) -> Iterator[tuple[Path, Path, Sequence[Path]]]:
    """The main font, the same in bold, and those that are asked where it has no glyph: files, until the block is left.

    Args:
        more: Further font files (TTF, OTF or TTC), asked first.

    Raises:
        NotLoaded: The packaged fonts are not installed.
        BadRequest: A font file is not there, or is none.
    """
    # Here and not when the file is put out: a wrong path is told by name, before any work is done.
    for path in more:
        if not path.is_file():
            raise BadRequest(f"There is no font file {path.name} at that place.", reason="FONT_MISSING", field="fonts")
        if path.suffix.lower() not in _FONT_ENDINGS or _begin(path) not in _FONT_BEGINNINGS:
            raise BadRequest(
                f"The file {path.name} is no font in TTF, OTF or TTC, or has another ending, or can't be read.",
                reason="FONT_UNREADABLE",
                field="fonts",
            )
    try:
        from pymupdf_fonts import fontbuffers
    except ModuleNotFoundError:
        raise NotLoaded(
            "PDFs need fonts. Install them with: pip install 'memecourt[export]'.", reason="EXPORT_NOT_LOADED"
        ) from None
    # fpdf2 takes fonts as files, and the package has them as bytes.
    with tempfile.TemporaryDirectory(prefix="memecourt-fonts-") as folder:
        written = []
        for name in (_MAIN, _BOLD, *_PACKAGED):
            written.append(Path(folder) / f"{name}.ttf")
            written[-1].write_bytes(fontbuffers[name]())
        yield written[0], written[1], (*more, *written[2:])


def _begin(path: Path) -> bytes:
    """The first four bytes of a file, by which its kind is known; none where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError:
        return b""


def printed(text: str, pdf: FPDF) -> Iterator[tuple[str, bool]]:
    """Text in pieces that the fonts of a PDF have, and whether each stands for what is not there to be seen.

    What can't be seen, and what no font has, comes as its code point (``U+202E``, ``U+4E2D``).
    """
    has = [font.cmap for font in pdf.fonts.values()]  # type: ignore[union-attr]
    for piece, hidden in split_hidden(text):
        if hidden:
            yield piece, True
            continue
        # Runs are kept together where the fonts allow: shaping joins letters only within one piece.
        plain: list[str] = []
        for character in piece:
            if character in "\n\t" or any(ord(character) in glyphs for glyphs in has):
                plain.append(character)
            # Variation selectors choose between forms of a letter, and show nothing themselves.
            elif character not in _OF_EMOJI:
                if plain:
                    yield "".join(plain), False
                    plain.clear()
                yield f"U+{ord(character):04X}", True
        if plain:
            yield "".join(plain), False
