"""Self-contained pages: they need no network and no other file, and are readable without scripts.

Untrusted text is escaped by the template engine; in addition, the page's content security policy only allows the script
with the listed digest, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from court.display import split_hidden, word
from court.errors import NotLoaded
from eval.reports import words

_OURS = "eval.reports"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure of a page, or the reason why there is none."""

    title: str
    svg: str
    """SVG of the figure; empty if there is nothing to draw."""
    caption: str
    """Description of the figure, or the reason why there is none."""


def need_page() -> None:
    """Raises NotLoaded if jinja2 or matplotlib is not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NotLoaded(
            f"A report as a page needs {error.name}, which is not installed: pip install 'memecourt[eval]'. "
            "Without --html there is nothing more to install.",
            reason="REPORT_NOT_INSTALLED",
        ) from None


def render(template: str, *, package: str = _OURS, style: str = "", script: str = "page.js", **values: Any) -> str:
    """Renders a page; all pages share a style, and a script unless they need their own.

    Args:
        template: Template file. It extends ``base.html``, which has the head, bar and help of all pages, and the
            security policy with the digests of style and script.
        package: Package whose ``templates`` are searched first, before those of the benchmark's report.
        style: File of additional style rules, searched in the same way; empty for none.
        script: File of the script, searched in the same way.
        values: Further values for the template; an undefined name is an error.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    need_page()
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    # A package's own templates take precedence over the shared ones.
    loader = ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, _OURS))])
    # Autoescape covers all templates: whatever strangers, models or users wrote stays text. StrictUndefined makes a
    # misspelt name fail instead of leaving a figure out.
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        seen=_visible_text,
        plain=words.plain,
        data_uri=_data_uri,
        digest=_digest,
        pretty=_pretty,
        percent=words.percent,
        percent_span=words.percent_span,
        places=words.places,
        places_span=words.places_span,
        points=words.points,
        points_span=words.points_span,
        lower=word,
    )
    css = "".join(loader.get_source(environment, name)[0] for name in ("page.css", style) if name)
    source = loader.get_source(environment, script)[0]
    return environment.get_template(template).render(
        style=_own(css),
        script=_own(source),
        style_digest=_source(css),
        script_digest=_source(source),
        nothing=words.NOTHING,
        **values,
    )


def _visible_text(text: object) -> Any:
    """Untrusted text, escaped, with invisible characters made visible."""
    from markupsafe import Markup

    # Markup's join and format escape what they are given: only the element around it is ours.
    return Markup("").join(
        Markup('<span class="invisible" title="an invisible character">{}</span>').format(piece) if hidden else piece
        for piece, hidden in split_hidden(str(text))
    )


def _data_uri(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def _digest(digest: str) -> str:
    """The first digits, enough to distinguish two by eye. The full digest is in the title attribute."""
    kind, _, digits = digest.rpartition(":")
    return f"{kind}:{digits[:12]}" if kind else digits[:12]


def _pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _own(text: str) -> Any:
    """Our own style or script, unchanged."""
    from markupsafe import Markup

    # It is put into the page unescaped, where an end tag within it would turn the rest into markup.
    if "</" in text:
        raise ValueError("style and script of the page may not hold what ends them")
    return Markup(text)


def _source(text: str) -> str:
    """Returns the source's hash for the page's security policy."""
    # A browser hashes the element's exact content, so templates must not add white space around it.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
