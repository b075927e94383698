"""A trial in a file, by the templates of the console's page: in exports and in the reports of ``memecourt-eval``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from court.record import TrialRecord
from serving.views.text import environment
from serving.views.trial_view import view_of


def course_of(record: TrialRecord, figures: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Returns the course of a trial as HTML without links and ids, so that a page may hold several.

    Args:
        figures: Pictures of precedents by id: data URI of the ``veiled`` and of the ``sharp`` one (or empty), and
            ``another``, True if it is not the picture that the Judge was shown.
    """
    values = {"record": record, "view": view_of(record), "figures": figures, "static": True}
    return Markup(environment(__package__).get_template("trial/static.html").render(values))


def style_sheet() -> str:
    """Returns the style sheet of all pages with that of a trial's parts."""
    static = files("serving.console") / "static"
    return "".join((static / name).read_text("utf-8") for name in ("base.css", "trial.css"))
