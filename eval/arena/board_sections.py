"""A leaderboard as sections of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from eval.arena.agreement import HumanAgreement
from eval.arena.bias import BiasReport, contrast_sections
from eval.arena.boards import BoardRow, Estimate, on_one_scale
from eval.arena.leaderboard import Leaderboard, Target
from eval.arena.words import SETTING_WORDS, Setting
from eval.reports.sections import Drawn, Section, Tile, need_page, plain
from eval.scores.measure import NOTHING, Figure, figure
from eval.scores.subgroups import wilson
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
    if best.rating is not None and not overall.grouped:
        surely = best.first == best.last == 1
        lead.append(f"{best.model} {'is surely first' if surely else 'has the highest rating, but not surely'}.")
    return lead


def board_sections(board: Leaderboard) -> list[Section]:
    """All sections, in order. Raises NotLoaded: jinja2 or matplotlib is not installed, which a page needs."""
    need_page()
    return [
        *_warnings(board),
        *_overall(board),
        *_dimensions(board),
        *_models(board),
        *_judges(board),
        _arena(board),
    ]


def _warnings(board: Leaderboard) -> Iterator[Section]:
    overall = board.board("overall")
    if not board.manifest.finished:
        lead = f"{board.memes} of {len(board.manifest.memes)} memes are done. The same command goes on with it."
        yield Section("unfinished", "Not finished: these figures will change", lead=(lead,), warning=True)
    if overall.not_ranked:
        also = " and Elo, which always have a value, stand" if overall.rows[0].elo else " stand"
        lead = f"{overall.not_ranked} Win rates{also} below."
        yield Section("unranked", "There are no ratings", lead=(lead,), warning=True)
    if overall.grouped:
        lead = f"{overall.grouped} Ratings and places hold within a group, which is rated by the battles among its own."
        yield Section("grouped", "Ratings hold within groups", lead=(lead,), warning=True)


def _overall(board: Leaderboard) -> Iterator[Section]:
    overall, settings, other = board.board("overall"), board.manifest.settings, board.other_vote
    head = ["model", *(["group"] if overall.grouped else []), "place", "rating", "style held equal", "Elo", "won"]
    head += [*([f"against {settings.anchor}"] if settings.anchor else []), "battles", "answered", "tokens"]
    head += ["in the language asked for"] if board.asks_for_languages else []
    head += [f"rating, {'judgements pooled' if settings.vote == 'majority' else 'joint vote'}"] if other else []
    targets = {target.model: target for target in board.targets}
    others = {row.model: row for row in other.rows} if other else {}
    rows: dict[str, tuple[str, ...]] = {}
    for number, row in enumerate(overall.rows, 1):
        target = targets[row.model]
        rows[row.model] = (
            f"{row.model} ({target.family})" if target.family else row.model,
            *([str(row.group)] if overall.grouped else []),
            # Across groups, the row number is not a place.
            _place(row, None if overall.grouped else number),
            _points(row.rating),
            _points(row.styled),
            _points(row.elo),
            _share(row.win_rate),
            *([_share(row.against_anchor)] if settings.anchor else []),
            f"{row.battles:,}",
            f"{target.answered:,} of {target.answered + sum(target.unanswered.values()):,}",
            f"{target.tokens:.0f}",
            *([_in_language(target)] if board.asks_for_languages else []),
            *([_points(others[row.model].rating)] if other else []),
        )
    without = (
        f"; {overall.without} of {overall.resamples} resamples have no finite ratings, and are in no interval"
        if overall.without
        else ""
    )
    parts = on_one_scale([overall, *([other] if other else [])])
    for number, models in enumerate(parts, 1):
        last = number == len(parts)
        yield Section(
            "overall" if number == 1 else f"overall-{number}",
            "Overall" if len(parts) == 1 else f"Overall, part {number} of {len(parts)}",
            (tuple(head), *(rows[model] for model in models)),
            notes=tuple(_overall_notes(board)) if last else (),
            drawn=_overall_drawn(board) if last else (),
            tiles=_overall_tiles(board) if number == 1 else (),
            caption=f"{overall.battles:,} battles, {_share(overall.tied)} tied{without}",
            level=2 if number == 1 else 3,
        )
    if overall.effects:
        worth = tuple((effect.name, _points(effect.points, "+.0f")) for effect in overall.effects)
        caption = "Points for one standard deviation of the difference between two answers"
        rows_of = (("difference in", "points"), *worth)
        yield Section("style", "Worth of style", rows_of, caption=caption, level=3, detail=True)


def _overall_notes(board: Leaderboard) -> Iterator[str]:
    overall, settings = board.board("overall"), board.manifest.settings
    yield (
        f"Elo: K = {settings.elo_k:g}, from 1000, in an order of the battles that the seed draws; in 100 other orders "
        f"of the same battles it moves by {max(row.elo_orders for row in overall.rows):.1f} points at most (standard "
        "deviation)."
    )
    if board.forfeits:
        done = "left out" if settings.forfeits == "leave out" else "lost"
        yield f"{board.forfeits} battles were none for want of an answer; they are {done}."
    if board.asks_for_languages:
        found = [target.in_language for target in board.targets if target.in_language]
        yield (
            "In the language asked for: of answers to questions that ask for one, as py3langid detects it; answers of "
            f"fewer than 20 letters ({sum(one.short for one in found)}), and those whose language is unknown "
            f"({sum(one.undetected for one in found)}), are left out."
        )
    if overall.no_style:
        yield f"Style could not be held equal. {overall.no_style}"


def _overall_tiles(board: Leaderboard) -> tuple[Tile, ...]:
    """Ratings and the share of questions that were answered, of each model, with their intervals."""
    overall = board.board("overall")
    answered = [(one.model, wilson(one.answered, one.answered + sum(one.unanswered.values()))) for one in board.targets]
    coverage = Tile("Answered", tuple((model, one) for model, one in answered if one is not None))
    found = []
    for title, name in (("Rating", "rating"), ("Elo", "elo")):
        values = [(row.model, getattr(row, name)) for row in overall.rows if overall.on_one_scale or name == "elo"]
        bars = [(model, Figure(one.value, one.low, one.high)) for model, one in values if one and one.low is not None]
        if bars:
            ends = (min(one.low for _, one in bars), max(one.high for _, one in bars) + 1)
            found.append(Tile(title, tuple(bars), *ends, ".0f"))
    return (*found, coverage) if coverage.bars else tuple(found)


def _overall_drawn(board: Leaderboard) -> tuple[Drawn, ...]:
    # Imported here: only a page has drawings.
    from eval.reports.figures import shares

    overall = board.board("overall")
    models = [row.model for row in overall.rows]
    rates = {plain(one): [overall.against.get((one, other)) for other in models] for one in models}
    matrix = shares([plain(model) for model in models], rates, "heads") if overall.against else ""
    won = (
        "Battles won by the model on the left, ties half. Counted, not derived from ratings; empty where two never met."
    )
    return (Drawn("Against each other", matrix or "", won),)


def _dimensions(board: Leaderboard) -> Iterator[Section]:
    titles = {one.key: one.title for one in board.manifest.settings.criteria}
    # The overall board, the first, is shown above.
    own = {
        one.dimension: {row.model: _share(row.win_rate) if one.not_ranked else _points(row.rating) for row in one.rows}
        for one in board.boards[1:]
    }
    notes = ["Redundancy: the higher the rating, the less of it."]
    notes += [f"{titles[one.dimension]}: {one.not_ranked}" for one in board.boards[1:] if one.not_ranked]
    notes += [
        f"{titles[one.dimension]}: {one.grouped} Each group is rated by itself."
        for one in board.boards[1:]
        if one.grouped
    ]
    parts = on_one_scale(board.boards)
    for number, models in enumerate(parts, 1):
        yield Section(
            "dimensions" if number == 1 else f"dimensions-{number}",
            "By dimension" if len(parts) == 1 else f"By dimension, part {number} of {len(parts)}",
            (
                ("by dimension", *(titles[dimension] for dimension in own)),
                *((model, *(cells[model] for cells in own.values())) for model in models),
            ),
            notes=tuple(notes) if number == len(parts) else (),
            caption="Bradley-Terry rating; where there are no finite ratings, the share of battles won",
            level=2 if number == 1 else 3,
        )


def _models(board: Leaderboard) -> Iterator[Section]:
    calls = sum(one.calls for one in board.spent.values())
    tokens = sum(one.tokens_in + one.tokens_out for one in board.spent.values())
    usd = sum(one.usd for one in board.spent.values())
    total = f"Asked: {calls:,} calls, {tokens:,} tokens, US$ {usd:.2f}."
    yield Section("models", "Models", lead=(total,))
    head = ("model", "at its server", "answers", "without an answer", "words", "judged", "unusable judgements")
    rows = [(*head, "calls", "asked again", "tokens in", "tokens out", "US $")]
    for target in board.targets:
        cost = ("–",) * 5
        if spent := board.spent.get(target.model):
            tokens_of = (f"{spent.tokens_in:,}", f"{spent.tokens_out:,}", f"{spent.usd:.2f}")
            cost = (f"{spent.calls:,}", f"{spent.repaired:,}", *tokens_of)
        missing = ", ".join(f"{count} {reason}" for reason, count in target.unanswered.items()) or NOTHING
        answers = (
            f"{target.answered:,}",
            missing,
            f"{target.words:.0f}",
            f"{target.as_judge:,}",
            f"{target.unjudged:,}",
        )
        rows.append((target.model, target.called, *answers, *cost))
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
    if board.both:
        lines.append(f"Ties: {', '.join(f'{count} {kind}' for kind, count in board.both.items())}.")
    if not board.bias:
        lines.append("The panel's bias was not studied: set bias = true in [arena].")
    yield Section("judges", "Judges", lead=tuple(lines))
    if board.bias:
        yield _bias(board.bias)
        models = [row.model for row in board.board("overall").rows]
        yield from (replace(one, level=3, detail=True) for one in contrast_sections(board.contrasts, models))
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
    rows = [(*head, "first wins", "favour themselves")]
    for one in bias.settings:
        guilty = [
            f"{case.judge} ({100 * case.lift:+.0f} [{100 * (case.low or 0):+.0f}, {100 * (case.high or 0):+.0f}])"
            for case in one.own_cases
            if case.favours_itself
        ]
        numbers = (
            f"{one.ndcg:.3f}",
            f"{one.chance:.3f}",
            figure(one.tau, ".2f"),
            figure(one.own_lift, "+.1f", times=100),
        )
        joint = (f"{one.joint:.3f}", figure(one.joint_tau, ".2f"), _share(one.first_wins))
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
        ("who", "agree", "agree where neither ties", "κ"),
        ("panel and people", _percent(humans.accuracy), _percent(humans.decided), _points(humans.kappa, ".2f")),
        ("people among themselves (Fleiss)", _share(people.observed), "", _points(people, ".2f")),
        *(
            (f"{judge} and people", _percent(humans.accuracies.get(judge)), "", _points(one, ".2f"))
            for judge, one in humans.judges.items()
        ),
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
            caption="Share of votes that are the people's, even votes being ties; of at most 1,000 panels a size",
            level=3,
            detail=True,
        )


def _arena(board: Leaderboard) -> Section:
    manifest, settings = board.manifest, board.manifest.settings
    pairing = (
        f"{settings.answers_per_task} of {len(settings.targets)} a question, all pairs"
        if settings.pairing == "coverage"
        else f"each against {settings.anchor}"
    )
    judged = f"{settings.judges_per_battle}{', in both orders' if settings.swapped else ''}"
    judged += ", one battle by their majority" if settings.vote == "majority" else ""
    judged += ", after an answer of their own" if settings.judge_answers else ""
    far = f"; far better counts {settings.far:g}" if settings.levels == 5 and settings.far != 1 else ""
    merged = f": {board.merged:,} answers merged" if board.merged else ""
    merged += f", {board.unmerged:,} not" if board.unmerged else ""
    left_out = sum(board.left_out.values()) + len(manifest.without_picture)
    references = (f"{SETTING_WORDS[Setting(name)]} {n:,}" for name, n in board.references.items())
    facts: Mapping[str, str] = {
        "panel": ", ".join(settings.judges),
        "controller": settings.controller,
        "pairing": pairing,
        "judges a battle": judged,
        "verdicts": f"{settings.levels} levels{far}",
        "guideline": f"{settings.guideline}{merged}",
        "battles by reference": ", ".join(references),
        "memes left out": ", ".join([str(left_out), *(f"{n} {reason}" for reason, n in board.left_out.items())]),
        "seed": str(manifest.seed),
        "sessions": str(manifest.interruptions + 1),
        "software": f"{manifest.software} {manifest.commit[:12]}",
    }
    return Section("arena", "The arena", (("arena", manifest.name), *facts.items()), words=True, detail=True)


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
    others = "".join(f", {count} {language}" for language, count in one.others.items())
    return f"{_share(one.share)} of {one.told:,}{others}"


def _place(row: BoardRow, number: int | None) -> str:
    if row.first is None or row.last is None:
        return NOTHING if row.rating is None or number is None else str(number)
    return str(row.first) if row.first == row.last else f"{row.first}–{row.last}"
