"""Figures of a leaderboard; see :mod:`eval.reports.figures`."""

from __future__ import annotations

from collections.abc import Sequence

from eval.arena.bias import BiasReport
from eval.arena.boards import Board
from eval.arena.leaderboard import Target
from eval.reports.svg import Ink, drawing, themed
from eval.scores.tables import plain


def rating_bars(board: Board, name: str) -> str | None:
    """Draws ratings with their intervals, the best on top; None without ratings on one scale."""
    rows = [(plain(row.model), row.rating) for row in board.rows if row.rating is not None]
    if not board.on_one_scale:
        return None
    from matplotlib.figure import Figure

    with drawing(name):
        figure = Figure(figsize=(5.6, 0.7 + 0.36 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, (_, one) in enumerate(rows):
            if one.low is not None and one.high is not None:
                axes.plot([one.low, one.high], [place, place], color=Ink.DEFENDER, linewidth=3, alpha=0.45)
            axes.plot([one.value], [place], "o", color=Ink.DEFENDER, markersize=6)
            at = (one.value, place)
            axes.annotate(f"{one.value:.0f}", at, (0, 7), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set_yticks(range(len(rows)), [model for model, _ in rows])
        # Inverted, so that the first row is on top.
        axes.set_ylim(len(rows) - 0.4, -0.7)
        axes.set_xlabel("Bradley-Terry rating; 400 points are odds of ten to one")
        axes.grid(visible=True, axis="x")
        axes.tick_params(axis="y", length=0)
        description = "; ".join(f"{model} {one.value:.0f}" for model, one in rows)
        return themed(figure, name, f"Ratings with 95 % intervals. {description}.")


def heads(board: Board, name: str) -> str | None:
    """Draws counted win rates of all pairs of models; None if no models met."""
    if not board.against:
        return None
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    models = [row.model for row in board.rows]
    side = 1.1 + 0.52 * len(models)
    with drawing(name):
        figure = Figure(figsize=(side + 0.7, side), layout="constrained")
        axes = figure.subplots()
        for i, one in enumerate(models):
            for j, other in enumerate(models):
                rate = board.against.get((one, other))
                # The cell of two models that never met stays empty.
                if rate is None:
                    continue
                ink = Ink.GOOD if rate >= 0.5 else Ink.BAD
                # The further from 0.5, the stronger the colour.
                box = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=ink, alpha=0.05 + 0.9 * abs(rate - 0.5))
                axes.add_patch(box)
                axes.text(j, i, f"{100 * rate:.0f}", ha="center", va="center", fontsize=8)
        axes.set(xlim=(-0.5, len(models) - 0.5), ylim=(len(models) - 0.5, -0.5))
        axes.set_xticks(range(len(models)), [plain(model) for model in models], rotation=40, ha="right")
        axes.set_yticks(range(len(models)), [plain(model) for model in models])
        axes.set_xlabel("against")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        description = "; ".join(
            f"{plain(one)} against {plain(other)} {rate:.0%}" for (one, other), rate in board.against.items()
        )
        return themed(figure, name, f"Win rates in per cent, ties half. {description}.")


def tokens(board: Board, targets: Sequence[Target], name: str) -> str | None:
    """Plots rating against length of answers; None without ratings on one scale."""
    length = {target.model: target.tokens for target in targets}
    rows = [
        (plain(row.model), length[row.model], row.rating.value)
        for row in board.rows
        if row.rating is not None and length[row.model]
    ]
    if not rows or not board.on_one_scale:
        return None
    from matplotlib.figure import Figure

    with drawing(name):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.subplots()
        for model, long, rating in rows:
            axes.plot([long], [rating], "o", color=Ink.ACCUSER, markersize=6)
            axes.annotate(model, (long, rating), (6, 4), textcoords="offset points", fontsize=8)
        axes.set(xlabel="tokens of an answer, mean", ylabel="rating")
        axes.margins(x=0.18, y=0.12)
        axes.grid(visible=True)
        description = "; ".join(f"{model}: {long:.0f} tokens, {rating:.0f}" for model, long, rating in rows)
        return themed(figure, name, f"Rating against length of answers. {description}.")


def own_cases(report: BiasReport, name: str) -> str | None:
    """Draws how much better judges rate their own answers than the rest of the panel does, by setting."""
    shown = [one for one in report.settings if one.own_cases]
    if not shown:
        return None
    from matplotlib.figure import Figure

    judges = list(dict.fromkeys(case.judge for one in shown for case in one.own_cases))
    inks = (Ink.DEFENDER, Ink.ACCUSER, Ink.DOUBT, Ink.MUTED)
    with drawing(name):
        figure = Figure(figsize=(5.6, 0.9 + 0.5 * len(judges)), layout="constrained")
        axes = figure.subplots()
        # There are as many inks as settings, not all of which may be shown.
        for number, (one, ink) in enumerate(zip(shown, inks, strict=False)):
            for case in one.own_cases:
                # Settings side by side, centred on the judge's line.
                place = judges.index(case.judge) + 0.17 * (number - (len(shown) - 1) / 2)
                if case.low is not None and case.high is not None:
                    ends = [100 * case.low, 100 * case.high]
                    axes.plot(ends, [place, place], color=ink, linewidth=2, alpha=0.5)
                first = case is one.own_cases[0]
                axes.plot(
                    [100 * case.lift], [place], "o", color=ink, markersize=5, label=str(one.setting) if first else None
                )
        axes.axvline(0, color=Ink.MUTED, linestyle=(0, (4, 3)), linewidth=1)
        axes.set_yticks(range(len(judges)), [plain(judge) for judge in judges])
        axes.set_ylim(len(judges) - 0.4, -0.6)
        axes.set_xlabel("lift of its own win rate, in points")
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=True, axis="x")
        figure.legend(loc="outside upper right", ncols=len(shown), fontsize=7.5)
        description = "; ".join(
            f"{plain(case.judge)} under {one.setting}: {100 * case.lift:+.0f}"
            for one in shown
            for case in one.own_cases
        )
        return themed(figure, name, f"Judges in their own case. {description}.")
