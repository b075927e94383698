"""The report of a reproduction: tables beside ours, claims, what differs from the paper, and the stages' commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from eval.reports.sections import Drawn, Section
from eval.reproduce.outcome import Cell, Claim, Reached, Reproduced
from eval.scores.measure import NOTHING


def part(key: str, title: str, content: Sequence[str | Section] = (), drawn: Sequence[Drawn] = ()) -> list[Section]:
    """A section with sentences, and those of its tables."""
    lines = tuple(each for each in content if isinstance(each, str))
    tables = [each for each in content if isinstance(each, Section)]
    numbered = (replace(table, key=f"{key}-{number}") for number, table in enumerate(tables, 1))
    return [Section(key, title, lead=lines, drawn=tuple(drawn)), *numbered]


def grid(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> Section:
    """A table of a section."""
    return Section("", title, (tuple(heads), *map(tuple, rows)), level=3, words=words)


def reproduced_lead(outcome: Reproduced, mode: str) -> list[str]:
    """Sentences before the sections."""
    what = "is published" if outcome.planted is None else "must be"
    models = ", ".join(f"{name} is {model}" for name, model in outcome.models.items() if name != model)
    return [
        f"Settings: {mode}. Intervals are 95 %, by bootstrap; differences are ours less what {what}.",
        *([f"Models: {models}."] if models else []),
        "A published share of right answers is unreachable where no number of them, out of ours, rounds to it."
        if outcome.planted is None
        else "What must be follows from the drawn data and the abilities of the stand-ins.",
        *([outcome.paper.remark] if outcome.paper.remark and outcome.planted is None else []),
        *(f"The stage {stage} stands: {why}." for stage, why in outcome.left.items()),
    ]


def reproduced_sections(
    outcome: Reproduced,
    commands: Mapping[str, str],
    *,
    figures: Sequence[Section] = (),
    differing: Sequence[Sequence[str]] = (),
    lines: Sequence[str] = (),
) -> list[Section]:
    """All sections, in order.

    Args:
        commands: The command of each stage.
        figures: Sections of figures that are no tables.
        differing: Further rows of what differs from the paper, and ``lines`` before them.
    """
    paper = outcome.paper
    parts = []
    for spec in paper.tables:
        cells = outcome.tables()[spec.id]
        named = "must be" if outcome.planted is not None and spec.demo else "published"
        heads = ("row", "figure", "n", named, "ours", "difference", "can occur here", "beside it")
        content: list[str | Section] = [spec.note] if spec.note else []
        if outcome.planted is not None and not spec.demo:
            content.append("Nothing drawn is for it: the figures below are the published ones.")
        content.append(grid(f"{spec.id}: figures", heads, list(map(cell_in_words, cells))))
        parts += part(spec.id.lower().replace(" ", "-"), f"{spec.id}: {spec.title}", content)
    title, columns = "Claims and their tests", ("claim", "measured", "value", "p", "outcome")
    line = (
        "Tests of each claim on what was judged here, with the largest model that was run. Several tests at "
        "5 %: one in twenty comes out by chance alone."
    )
    tests = [cells for claim in outcome.claims() for cells in _claim_rows(claim)]
    differs = [*([one[key] for key in ("what", "here", "paper", "why")] for one in paper.differs), *differing]
    choices = grid("Settings and choices", ["what", "here", "in the paper", "why"], differs, words=True)
    unread = grid("Parts of the paper", ["what", "why"], [*paper.unread.items()], words=True)
    stages = [[one.id, one.title, commands[one.id], outcome.left.get(one.id, "finished")] for one in paper.stages]
    return [
        *parts,
        *part("claims", title, [line, grid(title, columns, tests, words=True)]),
        *figures,
        *part("differences", "What differs from the paper", [*lines, *([choices] if differs else [])]),
        *(part("unread", "Not shown", [unread]) if paper.unread else ()),
        *part("stages", "Stages", [grid("Commands", ["stage", "what", "command", "state"], stages, words=True)]),
    ]


def _claim_rows(claim: Claim) -> Iterator[tuple[str, str, str, str, str]]:
    yield f"{claim.id}: {claim.claim}", claim.why, "", "", str(claim.verdict)
    for one in claim.parts:
        p, figure = "" if one.p is None else f"{one.p:.2g}", one.figure
        value = f"{figure.value:+.3f}"
        # Counts such as rounds have no interval, which is written as one of no width; a range of a number
        # to itself would look like certainty.
        if not figure.low == figure.high == figure.value:
            value = f"{value} ({figure.low:+.3f} to {figure.high:+.3f})"
        yield claim.id, one.what, value, p, str(one.verdict)


def cell_in_words(cell: Cell) -> list[str]:
    """A figure in words: its row and name, n, what it is beside, ours with its interval, and how the two stand."""

    def number(value: float | None, sign: str = "") -> str:
        return NOTHING if value is None else f"{value:{sign},.{cell.places}f}"

    ours = number(cell.ours.value if cell.ours else None)
    if cell.ours and cell.ours.low != cell.ours.high:
        ours = f"{ours} ({number(cell.ours.low)} to {number(cell.ours.high)})"
    occurs = {None: NOTHING, True: "yes", False: "no"}[cell.occurs]
    n = NOTHING if cell.n is None else f"{cell.n:,}"
    published, difference = number(cell.published), number(cell.difference, "+")
    reached = NOTHING if cell.reached is Reached.NONE else str(cell.reached)
    return [cell.row, cell.figure, n, published, ours, difference, occurs, reached]


def reproduced_json(outcome: Reproduced) -> dict[str, Any]:
    """The figures, without any text of memes or models."""
    return {
        "paper": outcome.paper.paper,
        "finished": not outcome.left,
        "left": dict(outcome.left),
        "models": dict(outcome.models),
        "tables": {
            name: [{**asdict(cell), "difference": cell.difference} for cell in cells]
            for name, cells in outcome.tables().items()
        },
        "claims": [asdict(claim) for claim in outcome.claims()],
    }
