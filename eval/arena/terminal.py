"""A leaderboard in a terminal."""

from __future__ import annotations

from eval.arena.boards import BoardRow, on_one_scale
from eval.arena.leaderboard import Leaderboard, Target
from eval.arena.words import SETTING_WORDS
from eval.scores.tables import table


def as_text(board: Leaderboard) -> str:
    """Renders the most important figures; the page has the others."""
    overall = board.board("overall")
    settings = board.manifest.settings
    anchor = f"{settings.anchor} has 1000" if settings.anchor else "mean 1000"
    lines = [
        f"{board.manifest.name}: {len(settings.targets)} models, {board.tasks:,} questions about {board.memes:,} "
        f"meme{'' if board.memes == 1 else 's'}, {overall.battles:,} battles",
        "" if board.manifest.finished else "Not finished: these figures will change.",
        f"Bradley-Terry ratings, {anchor}, with 95 % intervals by bootstrap over memes; Elo with "
        f"K = {settings.elo_k:g}.",
        "",
    ]
    header = [*(["group"] if overall.grouped else []), "place", "model", "rating", "Elo", "won", "battles", "answered"]
    other = board.other_vote
    if board.asks_for_languages:
        header.append("in language")
    if other:
        header.append("pooled" if settings.vote == "majority" else "joint vote")
    targets = {target.model: target for target in board.targets}
    rows: dict[str, list[str]] = {}
    for number, row in enumerate(overall.rows, 1):
        target = targets[row.model]
        rows[row.model] = [
            *([str(row.group)] if overall.grouped else []),
            # Across groups, the row number is not a place.
            _place(row, None if overall.grouped else number),
            row.model,
            _rating(row),
            "–" if row.elo is None else f"{row.elo.value:.0f}",
            "–" if row.win_rate is None else f"{100 * row.win_rate:.1f} %",
            f"{row.battles:,}",
            f"{target.answered:,} of {target.answered + sum(target.unanswered.values()):,}",
            *([_in_language(target)] if board.asks_for_languages else []),
            *([_rating(next(one for one in other.rows if one.model == row.model))] if other else []),
        ]
    for models in on_one_scale([overall, *([other] if other else [])]):
        lines += [table([header, *(rows[model] for model in models)]), ""]
    if overall.not_ranked:
        lines += [overall.not_ranked, ""]
    if overall.grouped:
        lines += [f"{overall.grouped} Ratings and places hold within a group.", ""]
    # The last criterion is the overall verdict, which is shown above.
    header = ["by dimension", *(one.title for one in board.manifest.settings.criteria[:-1])]
    rows = {}
    for row in overall.rows:
        own = [next(r for r in one.rows if r.model == row.model) for one in board.boards[1:]]
        rows[row.model] = [row.model, *("–" if each.rating is None else f"{each.rating.value:.0f}" for each in own)]
    for models in on_one_scale(board.boards):
        lines += [table([header, *(rows[model] for model in models)]), ""]
    first, decided = board.first_wins
    # A share of zero battles would be a figure without a measurement.
    won = f"The answer shown first won {100 * first:.1f} % of {decided:,} decided battles."
    lines.append(won if decided else "No battle was decided: all were ties.")
    if board.consistent:
        share, both = board.consistent
        lines.append(f"Judged in both orders, {100 * share:.1f} % of {both:,} battles had the same outcome.")
    if board.bias:
        lines.append("")
        shown = [["reference", "NDCG", "chance", "τ", "own lift", "NDCG, joint vote", "τ", "favour themselves"]]
        for one in board.bias.settings:
            guilty = [f"{case.judge} ({100 * case.lift:+.0f})" for case in one.own_cases if case.favours_itself]
            tau, joint = ("–" if value is None else f"{value:.2f}" for value in (one.tau, one.joint_tau))
            lift = "–" if one.own_lift is None else f"{100 * one.own_lift:+.1f}"
            figures = [f"{one.ndcg:.3f}", f"{one.chance:.3f}", tau, lift, f"{one.joint:.3f}", joint]
            shown.append([SETTING_WORDS[one.setting], *figures, ", ".join(guilty) or "nobody"])
        lines.append(table(shown))
    if board.humans and board.humans.accuracy is not None:
        lines.append(
            f"Panel and people agree on {100 * board.humans.accuracy:.1f} % of {board.humans.battles:,} battles."
        )
    calls = sum(one.calls for one in board.spent.values())
    tokens = sum(one.tokens_in + one.tokens_out for one in board.spent.values())
    usd = sum(one.usd for one in board.spent.values())
    lines += ["", f"Asked: {calls:,} calls, {tokens:,} tokens, US$ {usd:.2f}."]
    return "\n".join(lines)


def _in_language(target: Target) -> str:
    one = target.in_language
    return "–" if one is None or one.share is None else f"{100 * one.share:.1f} % of {one.told:,}"


def _place(row: BoardRow, number: int | None) -> str:
    if row.first is None or row.last is None:
        return "–" if row.rating is None or number is None else str(number)
    return str(row.first) if row.first == row.last else f"{row.first}–{row.last}"


def _rating(row: BoardRow) -> str:
    if row.rating is None:
        return "–"
    one = row.rating
    span = "" if one.low is None or one.high is None else f" [{one.low:.0f}, {one.high:.0f}]"
    return f"{one.value:.0f}{span}"
