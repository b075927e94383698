"""A leaderboard as sections of a report."""

from collections.abc import Iterable, Iterator

from eval.arena.agreement import human_sections, percent
from eval.arena.bias import bias_sections
from eval.arena.boards import Board, BoardRow
from eval.arena.leaderboard import FEWEST_LETTERS, Leaderboard
from eval.arena.words import SETTING_WORDS, Row, Setting
from eval.reports.sections import Section, Tile
from eval.scores.measure import NOTHING, Figure, figure, wilson
from eval.session.directory import Spent

_HOW = (
    "What is compared is how well a model explains the harm in a meme, by the judgement of models. Bradley-Terry "
    "ratings by maximum likelihood, ties half a win each; {anchor}, and 400 points are odds of ten to one: a "
    "difference of 100 points is a win in 64 of 100 battles, of 200 in 76. Intervals are 95 %, by bootstrap over "
    "memes, {resamples:,} resamples. Who is ahead in 97.5 % of the resamples is surely ahead; places are those that "
    "this leaves open."
)


def board_title(board: Leaderboard) -> str:
    """Title of the report."""
    return f"Leaderboard: {board.manifest.name}"


def board_lead(board: Leaderboard) -> list[str]:
    """Sentences before the sections."""
    manifest, settings, memes = board.manifest, board.manifest.settings, board.figures["memes"]
    anchor = f"{settings.anchor} has 1000" if settings.anchor else "their mean is 1000"
    lead = [
        f"{manifest.name}: {len(settings.targets)} models, {board.figures['tasks']:,} questions about {memes:,} "
        f"meme{'' if memes == 1 else 's'} of {manifest.dataset}, {manifest.split}; "
        f"{len(settings.judges)} of them judged {board.overall.battles:,} battles.",
        _HOW.format(anchor=anchor, resamples=settings.resamples),
    ]
    best = board.overall.rows[0]
    if best.rating is not None:
        surely = best.first == best.last == 1
        lead.append(f"{best.model} {'is surely first' if surely else 'has the highest rating, but not surely'}.")
    return lead


def board_sections(board: Leaderboard) -> list[Section]:
    """All sections, in order."""
    return [
        *_warnings(board),
        _overall(board),
        _dimensions(board),
        *_models(board.figures),
        *_judges(board),
        _arena(board),
    ]


def _warnings(board: Leaderboard) -> Iterator[Section]:
    if not board.manifest.finished:
        done = f"{board.figures['memes']} of {len(board.manifest.memes)} memes are done."
        lead = f"{done} The same command goes on with it."
        yield Section("unfinished", "Not finished: these figures will change", lead=(lead,), warning=True)
    if board.overall.not_ranked:
        also = " and Elo, which always have a value, stand" if board.overall.rows[0].elo else " stand"
        lead = f"{board.overall.not_ranked} Win rates{also} below."
        yield Section("unranked", "There are no ratings", lead=(lead,), warning=True)


def _overall(board: Leaderboard) -> Section:
    overall, settings = board.overall, board.manifest.settings
    targets = {target["model"]: target for target in board.figures["targets"]}
    languages = [target["in_language"] for target in targets.values() if target["in_language"]]
    head = ["model", "place", "rating", "style held equal", "Elo", "won", "battles", "answered", "tokens"]
    head += ["in the language asked for"] if languages else []
    rows = []
    for number, row in enumerate(overall.rows, 1):
        target = targets[row.model]
        rows.append(
            (
                f"{row.model} ({target['family']})" if target["family"] else row.model,
                _place(row, number),
                *(figure(rating, ".0f") for rating in (row.rating, row.styled, row.elo)),
                percent(row.win_rate),
                f"{row.battles:,}",
                f"{target['answered']:,} of {_questions(target):,}",
                f"{target['tokens']:.0f}",
                *([_in_language(target["in_language"])] if languages else []),
            )
        )
    caption = f"{overall.battles:,} battles, {percent(overall.tied)} tied"
    if overall.without:
        caption += (
            f"; {overall.without} of {settings.resamples} resamples have no finite ratings, and are in no interval"
        )
    notes = [f"Elo: K = {settings.elo_k:g}, from 1000, in an order of the battles that the seed draws."]
    if languages:
        notes.append(
            "In the language asked for: of answers to questions that ask for one, as py3langid detects it; "
            f"{sum(one['unknown'] for one in languages)} are left out, of fewer than {FEWEST_LETTERS} letters or of an "
            "unknown language."
        )
    if overall.no_style:
        notes.append(f"Style could not be held equal. {overall.no_style}")
    tiles = _tiles(overall, targets.values())
    return Section("overall", "Overall", (tuple(head), *rows), notes=tuple(notes), tiles=tiles, caption=caption)


def _questions(target: Row) -> int:
    return int(target["answered"] + sum(target["unanswered"].values()))


def _tiles(overall: Board, targets: Iterable[Row]) -> tuple[Tile, ...]:
    """Ratings and the share of questions that were answered, of each model, with their intervals."""
    found = []
    for title, values in (
        ("Rating", {row.model: row.rating for row in overall.rows}),
        ("Elo", {row.model: row.elo for row in overall.rows}),
    ):
        if bars := tuple((model, one) for model, one in values.items() if isinstance(one, Figure)):
            ends = (min(one.low for _, one in bars), max(one.high for _, one in bars) + 1)
            found.append(Tile(title, bars, *ends, ".0f"))
    answered = ((one["model"], wilson(one["answered"], _questions(one))) for one in targets)
    if shares := tuple((model, one) for model, one in answered if one is not None):
        found.append(Tile("Answered", shares))
    return tuple(found)


def _dimensions(board: Leaderboard) -> Section:
    titles = {one.key: one.title for one in board.manifest.settings.criteria}
    # The overall board, the first, is shown above.
    boards = board.boards[1:]
    own = [
        {row.model: percent(row.win_rate) if one.not_ranked else figure(row.rating, ".0f") for row in one.rows}
        for one in boards
    ]
    head = ("by dimension", *(titles[one.dimension] for one in boards))
    rows = ((row.model, *(cells[row.model] for cells in own)) for row in board.overall.rows)
    return Section(
        "dimensions",
        "By dimension",
        (head, *rows),
        notes=(
            "Redundancy: the higher the rating, the less of it.",
            *(f"{titles[one.dimension]}: {one.not_ranked}" for one in boards if one.not_ranked),
        ),
        caption="Bradley-Terry rating; where there are no finite ratings, the share of battles won",
    )


def _models(figures: Row) -> Iterator[Section]:
    spent = {name: Spent(**one) for name, one in figures["spent"].items()}
    calls = sum(one.calls for one in spent.values())
    tokens = sum(one.tokens_in + one.tokens_out for one in spent.values())
    usd = sum(one.usd for one in spent.values())
    total = f"Asked: {calls:,} calls, {tokens:,} tokens, US$ {usd:.2f}."
    yield Section("models", "Models", lead=(total,))
    head = ("model", "at its server", "answers", "without an answer", "words", "judged", "unusable judgements")
    rows: list[tuple[str, ...]] = [(*head, "calls", "asked again", "tokens in", "tokens out", "US $")]
    for target in figures["targets"]:
        own = spent.get(target["model"], Spent())
        rows.append(
            (
                target["model"],
                target["called"],
                f"{target['answered']:,}",
                ", ".join(f"{count} {reason}" for reason, count in target["unanswered"].items()) or NOTHING,
                f"{target['words']:.0f}",
                f"{target['as_judge']:,}",
                f"{target['unjudged']:,}",
                *(f"{n:,}" for n in (own.calls, own.repaired, own.tokens_in, own.tokens_out)),
                f"{own.usd:.2f}",
            )
        )
    caption = "In all sessions together; what came out of the store of calls is not in it"
    yield Section("asked", "Calls by model", tuple(rows), caption=caption, level=3, detail=True)


def _judges(board: Leaderboard) -> Iterator[Section]:
    figures = board.figures
    share, decided = figures["first_wins"]
    # A share of zero battles would be a figure without a measurement.
    lead = (
        f"The answer shown first won {percent(share)} of {decided:,} decided battles; a judge that takes no notice of "
        "the order makes it about half."
        if decided
        else "No battle was decided: all were ties."
    )
    lines = [lead]
    if figures["consistent"]:
        same, both = figures["consistent"]
        lines.append(f"Judged in both orders, {percent(same)} of {both:,} battles had the same outcome.")
    if not figures["bias"]:
        lines.append("The panel's bias was not studied: set bias = true in [arena].")
    yield Section("judges", "Judges", lead=tuple(lines))
    if figures["bias"]:
        yield from bias_sections(figures["bias"], figures["contrasts"], [row.model for row in board.overall.rows])
    if figures["humans"]:
        yield from human_sections(figures["humans"])


def _arena(board: Leaderboard) -> Section:
    manifest, left_out = board.manifest, board.figures["left_out"]
    number = sum(left_out.values()) + len(manifest.without_picture)
    references = (f"{SETTING_WORDS[Setting(name)]} {n:,}" for name, n in board.figures["references"].items())
    settings = manifest.settings.model_dump(mode="json", exclude={"criteria", "targets"})
    facts = {
        **{name.replace("_", " "): _words(value) for name, value in settings.items()},
        "battles by reference": ", ".join(references),
        "answers not merged": f"{board.figures['unmerged']:,}",
        "memes left out": ", ".join([str(number), *(f"{n} {reason}" for reason, n in left_out.items())]),
        "seed": str(manifest.seed),
        "software": f"{manifest.software} {manifest.commit[:12]}",
    }
    return Section("arena", "The arena", (("arena", manifest.name), *facts.items()), words=True, detail=True)


def _words(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else NOTHING if value is None else str(value)


def _in_language(one: Row | None) -> str:
    return f"{percent(one['right'] / one['told'])} of {one['told']:,}" if one and one["told"] else NOTHING


def _place(row: BoardRow, number: int) -> str:
    if row.first is None or row.last is None:
        return NOTHING if row.rating is None else str(number)
    return str(row.first) if row.first == row.last else f"{row.first}–{row.last}"
