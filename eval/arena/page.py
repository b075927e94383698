"""The leaderboard page, styled like the benchmark's report."""

from __future__ import annotations

from eval.arena import figures
from eval.arena.boards import on_one_scale
from eval.arena.contrasts import contrast_sections
from eval.arena.leaderboard import Leaderboard
from eval.arena.words import SETTING_WORDS
from eval.datasets.published import published_file
from eval.reports.page import Drawn, need_page, render


def as_html(board: Leaderboard) -> str:
    """Renders the page; the same leaderboard gives the same page.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    need_page()
    paper = published_file("papers/memearena")
    overall = board.board("overall")
    bars = figures.rating_bars(overall, "ratings")
    heads = figures.heads(overall, "heads")
    tokens = figures.tokens(overall, board.targets, "tokens")
    own = figures.own_cases(board.bias, "own-cases") if board.bias else None
    return render(
        "leaderboard.html",
        package="eval.arena",
        style="leaderboard.css",
        board=board,
        overall=overall,
        parts=on_one_scale([overall, *([board.other_vote] if board.other_vote else [])]),
        dimension_parts=on_one_scale(board.boards),
        manifest=board.manifest,
        settings=board.manifest.settings,
        dimensions={one.key: one.title for one in board.manifest.settings.criteria},
        setting_words=SETTING_WORDS,
        published_ndcg={name: row[-1] for name, row in paper["ndcg"].items()},
        ndcg_source=f"{paper['source']}, table 2",
        contrasts=contrast_sections(board.contrasts, [row.model for row in overall.rows]),
        drawn=[
            Drawn(
                "Ratings",
                bars or "",
                "Overall, with 95 % intervals by bootstrap over memes."
                if bars
                else overall.not_ranked or overall.grouped,
            ),
            Drawn(
                "Rating against length",
                tokens or "",
                "A judge may take length for quality: a slope here is no proof of it, and no acquittal."
                if tokens
                else "There are no ratings on one scale to set against length.",
            ),
        ],
        heads=Drawn(
            "Against each other",
            heads or "",
            "Battles won, in per cent, ties half. Counted, not derived from ratings; empty where two never met.",
        ),
        own=Drawn(
            "Judges in their own case",
            own or "",
            "Win rate that a judge gives its own answers, less what the rest of the panel gives them in the same "
            "battles, with 95 % intervals. Right of the line: it favours itself."
            if own
            else "No judge had a case of its own that others judged too.",
        ),
    )
