"""JSON Lines files: every line counts, and unreadable ones are named."""

import json

import pytest

from court.errors import BadRequest
from eval.arena.folder import HumanReference
from eval.datasets.record_files import read_json_lines
from eval.session.directory import replace_lines, stored_lines


def test_lines_are_numbered_and_end_only_at_line_feeds(tmp_path):
    path = tmp_path / "references.jsonl"
    texts = ("one\u2028line", "another\x85line")
    lines = [json.dumps({"meme": "m", "reasoning": text}, ensure_ascii=False) for text in texts]
    path.write_text("\r\n\n".join(lines) + "\n", encoding="utf-8", newline="")
    found = read_json_lines(path, HumanReference)
    assert [(number, one.reasoning) for number, one in found] == [(1, texts[0]), (3, texts[1])]


def test_unreadable_lines_and_files_are_named(tmp_path):
    path = tmp_path / "references.jsonl"
    path.write_text('{"meme": "m", "reasoning": "x"}\n{"meme": "m"}\n')
    with pytest.raises(BadRequest, match=r"references\.jsonl can't be used:\nline 2: reasoning: "):
        read_json_lines(path, HumanReference)
    (tmp_path / "no-text.jsonl").write_bytes(b"\xff")
    for unreadable in (tmp_path, tmp_path / "no-text.jsonl", tmp_path / "missing.jsonl"):
        with pytest.raises(BadRequest, match=r"can't be read|is not UTF-8"):
            read_json_lines(unreadable, HumanReference)


def test_line_cut_by_a_crash_is_skipped_only_in_an_append_only_file(tmp_path):
    path = tmp_path / "deep" / "memes.jsonl"
    one = HumanReference(meme="m", reasoning="a line\u2028within a text")
    replace_lines(path, [one, one])
    assert stored_lines(path, HumanReference.model_validate_json, torn=False) == (one, one)
    assert [file.name for file in path.parent.iterdir()] == ["memes.jsonl"], "and no half-written file beside it"
    path.write_text(path.read_text() + '{"meme": "m"')
    assert stored_lines(path, HumanReference.model_validate_json) == (one, one)
    with pytest.raises(BadRequest, match=r"memes\.jsonl, line 3, can't be read"):
        stored_lines(path, HumanReference.model_validate_json, torn=False)
    path.write_text('{"meme": "m"}\n' + path.read_text())
    with pytest.raises(BadRequest, match="line 1, can't be read") as caught:
        stored_lines(path, HumanReference.model_validate_json, reason="ARENA_UNREADABLE")
    assert caught.value.reason == "ARENA_UNREADABLE"
