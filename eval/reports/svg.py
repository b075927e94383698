"""matplotlib's figures as SVG that takes its colours from the page.

A figure is drawn in placeholder colours for entries of the page's palette (:class:`Ink`). In the SVG they become CSS
classes, so that a figure follows the page's light or dark theme; inline styles, which the page's security policy
forbids, become attributes. The same figure gives the same bytes.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree


class Ink:
    """Placeholder colours for the page's own; an element drawn in one gets its name as CSS class."""

    TEXT = "#010101"
    MUTED = "#020202"
    LINE = "#030303"
    ACCUSER = "#040404"
    DEFENDER = "#050505"
    GOOD = "#060606"
    BAD = "#070707"


_NAMES = {value: name.lower() for name, value in vars(Ink).items() if not name.startswith("_")}
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
TIP = "tip:"
"""Beginning of a group id (matplotlib's gid) that holds the words to show over it."""
_SCALE = 1.3
"""Pixels of the page per point of a figure."""
_COPIED = re.compile(
    r"fill|stroke|(fill-|stroke-)?opacity|stroke-(width|dasharray|dashoffset|linecap|linejoin|miterlimit)|text-anchor"
)
"""Properties of a style that become attributes."""


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """Configures matplotlib; ids in the figure are derived from ``name``."""
    import matplotlib

    style: dict[Any, Any] = {
        # Otherwise ids are random, and the same figure gives different bytes each time.
        "svg.hashsalt": name,
        "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
        "text.parse_math": False,  # a dollar sign in the name of a run is a dollar sign
        "text.color": Ink.TEXT,
        "axes.labelcolor": Ink.MUTED,
        "axes.titlecolor": Ink.TEXT,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.edgecolor": Ink.LINE,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "none",
        "font.family": ["DejaVu Sans"],  # comes with matplotlib; measures the layout only
        "font.size": 9,
        "grid.color": Ink.LINE,
        "grid.linewidth": 0.6,
        "xtick.color": Ink.LINE,
        "ytick.color": Ink.LINE,
        "xtick.labelcolor": Ink.MUTED,
        "ytick.labelcolor": Ink.MUTED,
        "legend.frameon": False,
        "legend.labelcolor": Ink.TEXT,
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # Characters that the measuring font lacks are still drawn by the page's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def themed(figure: Any, name: str, label: str) -> str:
    """The figure as an ``<svg>`` element for the page.

    Args:
        figure: matplotlib's, drawn within :func:`drawing`, which must still be open.
        name: Unique in the page; ids begin with it.
    """
    out = io.BytesIO()
    # A date would make each file different.
    figure.savefig(out, format="svg", metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    # Ids, and what refers to them, become unique within the page.
    prefixed = re.sub(r' id="|href="#|url\(#', lambda found: f"{found[0]}{name}-", out.getvalue().decode())
    root = ElementTree.fromstring(prefixed)
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in list(root.iter()):
        _unstyle(element)
        if element.get("id", "").startswith(f"{name}-{TIP}"):
            tip = ElementTree.Element(f"{{{_SVG}}}title")
            tip.text = element.attrib.pop("id").removeprefix(f"{name}-{TIP}")
            element.insert(0, tip)
    # The height follows from width and viewBox.
    for size in ("height", "version"):
        root.attrib.pop(size, None)
    # All figures at the same scale, so that their text has one size; the page lets them shrink.
    root.set("width", f"{float(root.get('viewBox', '').split()[2]) * _SCALE:.0f}")
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-label")
    title = ElementTree.Element(f"{{{_SVG}}}title", {"id": f"{name}-label"})
    title.text = label
    root.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode")


def _unstyle(element: ElementTree.Element) -> None:
    """Turns a style into attributes, and placeholder colours into classes."""
    style = element.attrib.pop("style", "")
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        prop, _, value = (part.strip() for part in declaration.partition(":"))
        # As attributes: the page's security policy allows styles in no element.
        if _COPIED.fullmatch(prop):
            element.set(prop, value)
        elif prop in ("font", "font-size") and (size := re.search(r"([\d.]+)px", value)):
            element.set("font-size", size[1])
    classes = []
    for prop in ("fill", "stroke"):
        ink = _NAMES.get(element.get(prop, ""))
        if ink is not None:
            del element.attrib[prop]
            classes.append(f"{prop}-{ink}")
    if classes:
        element.set("class", " ".join(classes))
