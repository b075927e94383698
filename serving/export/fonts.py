"""Fonts for PDFs, and text made of what they have: a character that none has comes by its code point, marked as ours.

A PDF shows a character only in a font that has it, and carries that font. The packaged ones (Noto Sans, FiraGO, Noto
Sans Symbols and Math, all under the SIL Open Font License) have the Latin, Greek, Cyrillic, Arabic, Hebrew, Thai and
Georgian scripts and many symbols. For others, Chinese, Japanese and Korean above all, font files can be named.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from court.errors import BadRequest, NotLoaded
from serving.console.unseen import pieces

if TYPE_CHECKING:
    from fpdf import FPDF

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
        BadRequest: A font file is not there.
    """
    for path in more:
        if not path.is_file():
            raise BadRequest(f"There is no font file {path.name} at that place.", reason="FONT_MISSING", field="fonts")
    try:
        from pymupdf_fonts import fontbuffers
    except ModuleNotFoundError:
        raise NotLoaded(
            "PDFs need fonts. Install them with: pip install 'memecourt[export]'.", reason="EXPORT_NOT_LOADED"
        ) from None
    with tempfile.TemporaryDirectory(prefix="memecourt-fonts-") as folder:
        written = []
        for name in (_MAIN, _BOLD, *_PACKAGED):
            written.append(Path(folder) / f"{name}.ttf")
            written[-1].write_bytes(fontbuffers[name]())
        yield written[0], written[1], (*more, *written[2:])


def printed(text: str, pdf: FPDF) -> Iterator[tuple[str, bool]]:
    """Text in pieces that the fonts of a PDF have, and whether each stands for what is not there to be seen.

    What can't be seen, and what no font has, comes as its code point (``U+202E``, ``U+4E2D``).
    """
    has = [font.cmap for font in pdf.fonts.values()]  # type: ignore[union-attr]
    for piece, hidden in pieces(text):
        if hidden:
            yield piece, True
            continue
        plain: list[str] = []
        for character in piece:
            if character in "\n\t" or any(ord(character) in glyphs for glyphs in has):
                plain.append(character)
            elif character not in _OF_EMOJI:
                if plain:
                    yield "".join(plain), False
                    plain.clear()
                yield f"U+{ord(character):04X}", True
        if plain:
            yield "".join(plain), False
