"""A leaderboard as sections of a report."""

from collections.abc import Iterator
from dataclasses import replace

from eval.arena.agreement import HumanAgreement
from eval.arena.bias import BiasReport, contrast_section
from eval.arena.boards import BoardRow, Estimate
from eval.arena.leaderboard import Leaderboard, Target
from eval.arena.words import SETTING_WORDS, Setting
from eval.reports.sections import Section, Tile, need_page
from eval.scores.measure import NOTHING, Figure, figure, wilson
from eval.session.directory import Spent
from serving.docket.review.agreement import Kappa

_HOW = (
    "What is compared is how well a model explains the harm in a meme, by the judgement of models. Bradley-Terry "
    "ratings by maximum likelihood, ties half a win each; {anchor}, and 400 points are odds of ten to one: a "
    "difference of 100 points is a win in 64 of 100 battles, of 200 in 76. Intervals are 95 %, by bootstrap over "
    "memes, {resamples:,} resamples. Who is ahead in 97.5 % of the resamples is surely ahead; places are those that "
    "this leaves open."
)
_BIAS = (
    "Every judge judged the same battles under every setting. Each one's ranking is set beside that of the rest of the "
    "panel, both without their own cases: by NDCG with relevance P − p and discount log2(p + 1), and by Kendall's τ. "
    "Both are 1 for the same ranking; turned upside down, τ is −1, and NDCG still far above 0.",
    "By chance: mean NDCG of a random order; below it, a ranking is worse than none. Own lift: how many points more "
    "often judges let their own answers win than impartial judges do, mean over judges. Joint vote: as MemeArena has "
    "it, beside the ranking by the majority of all judges, itself included, so that every judge agrees with itself.",
)


def board_title(board: Leaderboard) -> str:
    """Title of the report."""
    return f"Leaderboard: {board.manifest.name}"


def board_lead(board: Leaderboard) -> list[str]:
    """Sentences before the sections."""
    settings, overall = board.manifest.settings, board.board("overall")
    anchor = f"{settings.anchor} has 1000" if settings.anchor else "their mean is 1000"
    lead = [
        f"{board.manifest.name}: {len(settings.targets)} models, {board.tasks:,} questions about {board.memes:,} "
        f"meme{'' if board.memes == 1 else 's'} of {board.manifest.dataset}, {board.manifest.split}; "
        f"{len(settings.judges)} of them judged {overall.battles:,} battles.",
        _HOW.format(anchor=anchor, resamples=settings.resamples),
    ]
    best = overall.rows[0]
    if best.rating is not None:
        surely = best.first == best.last == 1
        lead.append(f"{best.model} {'is surely first' if surely else 'has the highest rating, but not surely'}.")
    return lead


def board_sections(board: Leaderboard) -> list[Section]:
    """All sections, in order. Raises NotLoaded: jinja2 or matplotlib is not installed, which a page needs."""
    need_page()
    return [*_warnings(board), _overall(board), _dimensions(board), *_models(board), *_judges(board), _arena(board)]


def _warnings(board: Leaderboard) -> Iterator[Section]:
    overall = board.board("overall")
    if not board.manifest.finished:
        lead = f"{board.memes} of {len(board.manifest.memes)} memes are done. The same command goes on with it."
        yield Section("unfinished", "Not finished: these figures will change", lead=(lead,), warning=True)
    if overall.not_ranked:
        also = " and Elo, which always have a value, stand" if overall.rows[0].elo else " stand"
        lead = f"{overall.not_ranked} Win rates{also} below."
        yield Section("unranked", "There are no ratings", lead=(lead,), warning=True)


def _overall(board: Leaderboard) -> Section:
    overall = board.board("overall")
    head = ["model", "place", "rating", "style held equal", "Elo", "won", "battles", "answered", "tokens"]
    head += ["in the language asked for"] if board.asks_for_languages else []
    targets = {target.model: target for target in board.targets}
    rows = []
    for number, row in enumerate(overall.rows, 1):
        target = targets[row.model]
        rows.append(
            (
                f"{row.model} ({target.family})" if target.family else row.model,
                _place(row, number),
                _points(row.rating),
                _points(row.styled),
                _points(row.elo),
                _share(row.win_rate),
                f"{row.battles:,}",
                f"{target.answered:,} of {target.answered + sum(target.unanswered.values()):,}",
                f"{target.tokens:.0f}",
                *([_in_language(target)] if board.asks_for_languages else []),
            )
        )
    caption = f"{overall.battles:,} battles, {_share(overall.tied)} tied"
    if overall.without:
        resamples = board.manifest.settings.resamples
        caption += f"; {overall.without} of {resamples} resamples have no finite ratings, and are in no interval"
    return Section(
        "overall",
        "Overall",
        (tuple(head), *rows),
        notes=tuple(_overall_notes(board)),
        tiles=_overall_tiles(board),
        caption=caption,
    )


def _overall_notes(board: Leaderboard) -> Iterator[str]:
    overall = board.board("overall")
    yield f"Elo: K = {board.manifest.settings.elo_k:g}, from 1000, in an order of the battles that the seed draws."
    if board.asks_for_languages:
        found = [target.in_language for target in board.targets if target.in_language]
        yield (
            "In the language asked for: of answers to questions that ask for one, as py3langid detects it; "
            f"{sum(one.unknown for one in found)} are left out, of fewer than 20 letters or of an unknown language."
        )
    if overall.no_style:
        yield f"Style could not be held equal. {overall.no_style}"


def _overall_tiles(board: Leaderboard) -> tuple[Tile, ...]:
    """Ratings and the share of questions that were answered, of each model, with their intervals."""
    answered = [(one.model, wilson(one.answered, one.answered + sum(one.unanswered.values()))) for one in board.targets]
    coverage = Tile("Answered", tuple((model, one) for model, one in answered if one is not None))
    found = []
    for title, name in (("Rating", "rating"), ("Elo", "elo")):
        values = [(row.model, getattr(row, name)) for row in board.board("overall").rows]
        bars = [(model, Figure(one.value, one.low, one.high)) for model, one in values if one and one.low is not None]
        if bars:
            ends = (min(one.low for _, one in bars), max(one.high for _, one in bars) + 1)
            found.append(Tile(title, tuple(bars), *ends, ".0f"))
    return (*found, coverage) if coverage.bars else tuple(found)


def _dimensions(board: Leaderboard) -> Section:
    titles = {one.key: one.title for one in board.manifest.settings.criteria}
    # The overall board, the first, is shown above.
    boards = board.boards[1:]
    own = [
        {row.model: _share(row.win_rate) if one.not_ranked else _points(row.rating) for row in one.rows}
        for one in boards
    ]
    head = ("by dimension", *(titles[one.dimension] for one in boards))
    rows = ((row.model, *(cells[row.model] for cells in own)) for row in board.boards[0].rows)
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


def _models(board: Leaderboard) -> Iterator[Section]:
    calls = sum(one.calls for one in board.spent.values())
    tokens = sum(one.tokens_in + one.tokens_out for one in board.spent.values())
    usd = sum(one.usd for one in board.spent.values())
    total = f"Asked: {calls:,} calls, {tokens:,} tokens, US$ {usd:.2f}."
    yield Section("models", "Models", lead=(total,))
    head = ("model", "at its server", "answers", "without an answer", "words", "judged", "unusable judgements")
    rows: list[tuple[str, ...]] = [(*head, "calls", "asked again", "tokens in", "tokens out", "US $")]
    for target in board.targets:
        missing = ", ".join(f"{count} {reason}" for reason, count in target.unanswered.items()) or NOTHING
        counts = (f"{target.as_judge:,}", f"{target.unjudged:,}")
        spent = board.spent.get(target.model, Spent())
        cost = (
            *(f"{n:,}" for n in (spent.calls, spent.repaired, spent.tokens_in, spent.tokens_out)),
            f"{spent.usd:.2f}",
        )
        answers = (f"{target.answered:,}", missing, f"{target.words:.0f}")
        rows.append((target.model, target.called, *answers, *counts, *cost))
    caption = "In all sessions together; what came out of the store of calls is not in it"
    yield Section("asked", "Calls by model", tuple(rows), caption=caption, level=3, detail=True)


def _judges(board: Leaderboard) -> Iterator[Section]:
    share, decided = board.first_wins
    # A share of zero battles would be a figure without a measurement.
    lead = (
        f"The answer shown first won {_share(share)} of {decided:,} decided battles; a judge that takes no notice of "
        "the order makes it about half."
        if decided
        else "No battle was decided: all were ties."
    )
    lines = [lead]
    if board.consistent:
        same, both = board.consistent
        lines.append(f"Judged in both orders, {_share(same)} of {both:,} battles had the same outcome.")
    if not board.bias:
        lines.append("The panel's bias was not studied: set bias = true in [arena].")
    yield Section("judges", "Judges", lead=tuple(lines))
    if board.bias:
        yield _bias(board.bias)
        models = [row.model for row in board.board("overall").rows]
        yield from (replace(contrast_section(one, models), level=3, detail=True) for one in board.contrasts)
        sizes = (
            (str(one.size), f"{one.panels:,}", f"{one.ndcg:.3f}", f"{one.chance:.3f}", figure(one.tau, ".2f"))
            for one in board.bias.sizes
        )
        caption = f"Nearness to the ranking by the whole panel; reference: {SETTING_WORDS[board.bias.sized_by]}"
        rows = (("judges", "panels", "NDCG", "by chance", "τ"), *sizes)
        yield Section("panels", "Smaller panels", rows, caption=caption, level=3, detail=True)
    if board.humans:
        yield from human_sections(board.humans)


def _bias(bias: BiasReport) -> Section:
    head = ("reference", "judgements", "NDCG", "by chance", "τ", "own lift", "NDCG, joint vote", "τ, joint vote")
    rows = [(*head, "favour themselves")]
    for one in bias.settings:
        guilty = [
            f"{case.judge} ({100 * case.lift:+.0f} [{100 * (case.low or 0):+.0f}, {100 * (case.high or 0):+.0f}])"
            for case in one.own_cases
            if case.favours_itself
        ]
        numbers = (
            figure(one.ndcg),
            figure(one.chance),
            figure(one.tau, ".2f"),
            figure(one.own_lift, "+.1f", times=100),
        )
        joint = (figure(one.joint), figure(one.joint_tau, ".2f"))
        rows.append((SETTING_WORDS[one.setting], f"{one.battles:,}", *numbers, *joint, ", ".join(guilty) or "nobody"))
    return Section(
        "bias",
        "Bias, by what judges are shown as a reference",
        tuple(rows),
        notes=_BIAS,
        caption="Mean over judges",
        level=3,
    )


def human_sections(humans: HumanAgreement) -> Iterator[Section]:
    """Builds tables of the agreement of judges and people."""
    even = f"; {humans.even} more on which votes were even" if humans.even else ""
    people = humans.people
    rows = [
        ("who", "agree", "κ"),
        ("panel and people", _percent(humans.accuracy), _points(humans.kappa, ".2f")),
        ("people among themselves (Fleiss)", _share(people.observed), _points(people, ".2f")),
        *((f"{one.judge} and people", _percent(one.accuracy), _points(one.kappa, ".2f")) for one in humans.judges),
    ]
    caption = f"{humans.battles} battles that both judged{even}"
    yield Section("people", "Panel and people", tuple(rows), caption=caption, level=3)
    if humans.panels:
        panels = (
            (
                str(one.size),
                f"{one.panels:,}",
                f"{one.battles:.0f}",
                f"{_share(one.accuracy)} [{_share(one.lowest)}, {_share(one.highest)}]",
                figure(one.kappa, ".2f"),
            )
            for one in humans.panels
        )
        yield Section(
            "people-panels",
            "People, and smaller panels",
            (("judges", "panels", "battles", "agree", "κ"), *panels),
            notes=("Published (MemeArena, 50 battles): 64, 60, 62 and 68 % for one to four.",),
            caption="Share of votes that are the people's, even votes being ties",
            level=3,
            detail=True,
        )


def _arena(board: Leaderboard) -> Section:
    manifest = board.manifest
    left_out = sum(board.left_out.values()) + len(manifest.without_picture)
    references = (f"{SETTING_WORDS[Setting(name)]} {n:,}" for name, n in board.references.items())
    settings = manifest.settings.model_dump(mode="json", exclude={"criteria", "targets"})
    facts = {
        **{name.replace("_", " "): _words(value) for name, value in settings.items()},
        "battles by reference": ", ".join(references),
        "answers not merged": f"{board.unmerged:,}",
        "memes left out": ", ".join([str(left_out), *(f"{n} {reason}" for reason, n in board.left_out.items())]),
        "seed": str(manifest.seed),
        "software": f"{manifest.software} {manifest.commit[:12]}",
    }
    return Section("arena", "The arena", (("arena", manifest.name), *facts.items()), words=True, detail=True)


def _words(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else NOTHING if value is None else str(value)


def _points(one: Estimate | Kappa | None, form: str = ".0f") -> str:
    """A value with its interval, if it has one."""
    if one is None or one.value is None or one.low is None or one.high is None:
        return figure(None if one is None else one.value, form)
    return figure(Figure(one.value, one.low, one.high), form)


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _percent(value: Figure | None) -> str:
    return NOTHING if value is None else f"{figure(value, '.1f', times=100)} %"


def _in_language(target: Target) -> str:
    one = target.in_language
    if one is None or one.share is None:
        return NOTHING
    return f"{_share(one.share)} of {one.told:,}"


def _place(row: BoardRow, number: int) -> str:
    if row.first is None or row.last is None:
        return NOTHING if row.rating is None else str(number)
    return str(row.first) if row.first == row.last else f"{row.first}–{row.last}"
