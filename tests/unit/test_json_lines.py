"""Files of JSON lines: every line counts, and what can't be read is named."""

import json

import pytest

from court.errors import BadRequest
from eval.arena.folder import HumanReference
from eval.datasets.json_lines import read_json_lines


def test_lines_are_numbered_and_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "references.jsonl"
    texts = ("one\u2028line", "another\x85line")
    lines = [json.dumps({"meme": "m", "reasoning": text}, ensure_ascii=False) for text in texts]
    path.write_text("\r\n\n".join(lines) + "\n", encoding="utf-8", newline="")
    found = list(read_json_lines(path, HumanReference))
    assert [(number, one.reasoning) for number, one in found] == [(1, texts[0]), (3, texts[1])]


def test_what_can_t_be_read_is_named(tmp_path):
    path = tmp_path / "references.jsonl"
    path.write_text('{"meme": "m", "reasoning": "x"}\n{"meme": "m"}\n')
    with pytest.raises(BadRequest, match=r"references\.jsonl, line 2: reasoning: "):
        list(read_json_lines(path, HumanReference))
    (tmp_path / "no-text.jsonl").write_bytes(b"\xff")
    for unreadable in (tmp_path, tmp_path / "no-text.jsonl", tmp_path / "missing.jsonl"):
        with pytest.raises(BadRequest, match="can't be read"):
            list(read_json_lines(unreadable, HumanReference))
