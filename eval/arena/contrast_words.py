"""Contrasts of settings as sections of a report."""

from __future__ import annotations

from collections.abc import Sequence

from eval.arena.contrasts import SettingContrast, Shift
from eval.arena.words import SETTING_WORDS
from eval.reports.sections import Section
from eval.scores.metrics import Figure


def contrast_sections(found: Sequence[SettingContrast], models: Sequence[str]) -> list[Section]:
    """A table for each contrast: targets down, judges across.

    Args:
        found: The contrasts.
        models: Targets in the order in which they are shown, such as that of the whole board.
    """
    return [_section(one, models) for one in found]


def _section(contrast: SettingContrast, models: Sequence[str]) -> Section:
    one, other = SETTING_WORDS[contrast.one], SETTING_WORDS[contrast.other]
    judges = list(dict.fromkeys(shift.judge for shift in contrast.shifts))
    shifts = {(shift.judge, shift.target): shift for shift in contrast.shifts}
    rows = [(model, *(_cell(shifts[judge, model]) for judge in judges)) for model in models]
    sure = [shift for shift in contrast.shifts if shift.sure]
    notes = [
        f"Points that a target's rating is higher by a judge's verdicts with {one} than with {other}, over the same "
        f"{contrast.battles:,} judgements in the same order; 95 % intervals by bootstrap over memes. * the interval "
        "does not hold 0; ° of the judge's own family. Each interval is by itself: of twenty, one misses by chance.",
        f"Ratings are spread by {contrast.spread:.0f} points with {one} and {contrast.other_spread:.0f} with {other} "
        f"(standard deviation, mean over judges): {_points(contrast.wider)}.",
    ]
    if contrast.own_family is not None:
        notes.append(f"The judges' own families gain {_points(contrast.own_family)} more than the others.")
    if sure:
        notes.append("Surely moved: " + "; ".join(f"{shift.target} by {shift.judge}" for shift in sure) + ".")
    title = f"Ratings with {one}, less those with {other}"
    return Section(f"contrast-{contrast.one}", title, (("target", *judges), *rows), tuple(notes))


def _cell(shift: Shift) -> str:
    return _points(shift.points) + "*" * shift.sure + "°" * shift.own_family


def _points(figure: Figure) -> str:
    return f"{figure.value:+.0f} [{figure.low:+.0f}, {figure.high:+.0f}]"
