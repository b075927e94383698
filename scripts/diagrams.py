"""Draws the diagrams of the documentation: boxes on a grid with arrows between them, as SVG.

python scripts/diagrams.py    # writes them anew
"""

from __future__ import annotations

from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, HEIGHT, GAP_X, GAP_Y = 178, 54, 46, 40

Diagram = tuple[dict[str, tuple[float, float, str]], list[tuple[str, str, str]]]
"""Boxes by name, with column, row and text (a line for each ``|``), and arrows: from, to, word beside it."""

DIAGRAMS: dict[str, Diagram] = {
    "flow.svg": (
        {
            "meme": (0, 0, "meme|picture, text"),
            "known": (1, 0, "decided before?|person, precedent, court"),
            "search": (2, 0, "precedents|similar labelled memes"),
            "proposer": (1, 1, "Proposer|describes the picture"),
            "accuser": (2, 1, "Accuser|argues for harm"),
            "defender": (2, 2, "Defender|argues against it"),
            "judge": (3, 0, "Judge|strengths, rationale"),
            "rule": (3, 1, "rule in code|label, risk"),
            "decision": (3, 2, "allow, block or review|in a signed log"),
        },
        [
            ("meme", "known", ""),
            ("known", "search", "no"),
            ("known", "proposer", "no"),
            ("proposer", "accuser", ""),
            ("proposer", "defender", ""),
            ("search", "judge", ""),
            ("accuser", "judge", ""),
            ("defender", "judge", ""),
            ("judge", "rule", ""),
            ("rule", "decision", ""),
        ],
    ),
    "explanation/one-meme.svg": (
        {
            "rpc": (0, 0, "rpc/judge|bytes to a request"),
            "judge": (1, 0, "judging/judge|validate, decode"),
            "known": (2, 0, "known, leases|which trial answers?"),
            "running": (3, 0, "admission, running|once for all callers"),
            "executor": (3, 1, "executor|court and docket"),
            "trial": (2, 1, "court/trial, full|the procedure"),
            "judgment": (2, 2, "judgment|strengths to label"),
            "docket": (3, 2, "docket|stored, then answered"),
        },
        [
            ("rpc", "judge", ""),
            ("judge", "known", ""),
            ("known", "running", ""),
            ("running", "executor", ""),
            ("trial", "judgment", ""),
            ("trial", "executor", "event"),
            ("executor", "docket", ""),
        ],
    ),
    "explanation/rule.svg": (
        {
            "vote": (0, 0, "vote of precedents"),
            "judge": (0, 1, "ruling of the Judge"),
            "strengths": (1, 0.5, "strengths|of harm, and against it"),
            "rule": (2, 0.5, "benign strong|and above harmful?"),
            "benign": (3, 0, "not harmful"),
            "harm": (3, 1, "harmful"),
            "nothing": (0, 2, "nothing comparable"),
            "undecided": (3, 2, "undecided: a person"),
            "failure": (0, 3, "a failure"),
            "hold": (3, 3, "no verdict: hold back"),
        },
        [
            ("vote", "strengths", ""),
            ("judge", "strengths", ""),
            ("strengths", "rule", ""),
            ("rule", "benign", "yes"),
            ("rule", "harm", "no"),
            ("nothing", "undecided", ""),
            ("failure", "hold", ""),
        ],
    ),
    "explanation/risk.svg": (
        {
            "library": (0, 0, "labelled memes"),
            "held": (1, 0, "held out in blocks,|with near-duplicates"),
            "right": (2, 0, "label right?"),
            "cut": (3, 0, "cut-off for|--risk 0.1"),
            "meme": (0, 1, "new meme"),
            "risk": (1, 1, "risk =|1 - probability of label"),
            "above": (3, 1, "above the cut-off?"),
            "person": (4, 0, "review"),
            "alone": (4, 1, "allow or block"),
        },
        [
            ("library", "held", ""),
            ("held", "right", ""),
            ("right", "cut", ""),
            ("meme", "risk", ""),
            ("risk", "above", ""),
            ("cut", "above", ""),
            ("above", "person", "yes"),
            ("above", "alone", "no"),
        ],
    ),
    "explanation/decide.svg": (
        {
            "request": (0, 0, "request"),
            "person": (1, 0, "decided|by a person?"),
            "copy": (2, 0, "copy of a precedent|that binds?"),
            "known": (3, 0, "judged before, under|the same versions?"),
            "trial": (4, 0, "trial"),
            "finding": (1, 1, "their finding|case open: allow → review"),
            "label": (2, 1, "its label"),
            "verdict": (3, 1, "that verdict"),
            "new": (4, 1, "a new verdict"),
        },
        [
            ("request", "person", ""),
            ("person", "copy", "no"),
            ("copy", "known", "no"),
            ("known", "trial", "no"),
            ("person", "finding", "yes"),
            ("copy", "label", "yes"),
            ("known", "verdict", "yes"),
            ("trial", "new", ""),
        ],
    ),
    "explanation/proof.svg": (
        {
            "event": (0, 0, "event of a trial"),
            "entry": (1, 0, "entry:|header, body, salt"),
            "tree": (2, 0, "Merkle tree|of all headers"),
            "checkpoint": (3, 0, "checkpoint,|signed by the docket"),
            "anchor": (4, 0, "copy kept elsewhere"),
            "erased": (1, 1, "erased:|header stays"),
            "receipt": (3, 1, "receipt with each verdict"),
        },
        [
            ("event", "entry", ""),
            ("entry", "tree", ""),
            ("tree", "checkpoint", ""),
            ("checkpoint", "anchor", ""),
            ("entry", "erased", ""),
            ("checkpoint", "receipt", ""),
        ],
    ),
}


def svg(diagram: Diagram) -> str:
    """Returns a diagram as SVG, readable on light and dark pages."""
    boxes, arrows = diagram
    corners = {name: (10 + x * (WIDTH + GAP_X), 10 + y * (HEIGHT + GAP_Y)) for name, (x, y, _) in boxes.items()}
    right, bottom = (max(corner[axis] for corner in corners.values()) for axis in (0, 1))
    parts = []
    for start, end, word in arrows:
        (x1, y1), (x2, y2) = corners[start], corners[end]
        if x1 == x2:  # from one box down to the next
            x1, y1, x2, y2 = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, y2 - 4
        else:
            x1, y1, x2, y2 = x1 + WIDTH, y1 + HEIGHT / 2, x2 - 4, y2 + HEIGHT / 2
        parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#678" fill="none" marker-end="url(#to)"/>')
        if word:
            # In the middle of a gap between columns, where a word has no more room; beside an arrow that goes down.
            place = f'x="{(x1 + x2) / 2 + 6 * (x1 == x2):g}" y="{(y1 + y2) / 2 - 6:g}"'
            anchor = "" if x1 == x2 else ' text-anchor="middle"'
            parts.append(f'<text {place}{anchor} fill="#678">{escape(word)}</text>')
    for name, (x, y) in corners.items():
        lines = boxes[name][2].split("|")
        parts.append(f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff" stroke="#345"/>')
        for number, line in enumerate(lines):
            height = y + HEIGHT / 2 + 5 + 18 * (number - (len(lines) - 1) / 2)
            weight = ' font-weight="600"' if number == 0 else ""
            place = f'x="{x + WIDTH / 2:g}" y="{height:g}" text-anchor="middle"'
            parts.append(f'<text {place} fill="#123"{weight}>{escape(line)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + WIDTH + 10:g} {bottom + HEIGHT + 10:g}"'
    tip = '<path d="M0 0L8 4L0 8z" fill="#678"/>'
    marker = f'<marker id="to" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto">{tip}</marker>'
    body = "\n".join(parts)
    return f'{head} font-family="sans-serif" font-size="13">\n<defs>{marker}</defs>\n{body}\n</svg>\n'


def main() -> None:
    """Writes all diagrams."""
    for name, diagram in DIAGRAMS.items():
        (DOCS / name).write_text(svg(diagram), "utf-8")


if __name__ == "__main__":
    main()
