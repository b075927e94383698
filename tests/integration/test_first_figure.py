"""A researcher's first session: from a table of 80 drawn memes to a report, by the commands of one page alone."""

import csv

import pytest

from eval.synthetic.make import Layout, make
from tests.support.doc_blocks import ROOT, Shell, commands

STEPS = [one.line for one in commands(ROOT / "docs/researcher/first-figure.md")]


@pytest.fixture(scope="module")
def researcher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("researcher")
    made = make(folder / "drawn", Layout.FHM, train=80, val=0, test=0)
    (folder / "pictures").mkdir()
    with (folder / "memes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["filename", "text", "label"])
        for meme in made.memes:
            name = f"{meme.id}.png"
            (folder / "drawn" / meme.image).rename(folder / "pictures" / name)
            table.writerow([name, meme.text, "hateful" if meme.harmful else "none"])
    return Shell(folder, folder / "home")


def test_page_takes_three_commands():
    assert len(STEPS) == 3


@pytest.mark.parametrize("line", STEPS)
def test_commands_lead_to_a_report(researcher, line):
    # Findings, such as texts that stand under two pictures by design, end the check with 1.
    output = researcher.run(line, allowed_codes=(0, 1) if " check " in line else (0,))
    if " check " in line:
        assert "harmful = hateful (40), benign = none (40)" in output
        assert "pictures missing" not in output
    if line == STEPS[-1]:
        assert "macro-F1" in output
        page = (researcher.folder / "first.html").read_text()
        assert page.count("<svg") >= 2 and "95 %" in page


def test_misread_tables_name_the_option_that_helps(researcher):
    text = (researcher.folder / "memes.csv").read_text().replace("hateful", "b").replace("none", "a")
    (researcher.folder / "odd.csv").write_text(text.replace("filename,text,label", "filename,text,verdict"))
    for options in ("", "--harmful c"):
        line = f"memecourt-eval run --data odd.csv --test-share .2 --out odd {options} 2>&1"
        output = researcher.run(line, allowed_codes=(1, 2))
        assert "--harmful" in output and "a (40), b (40)" in output.replace("b (40), a (40)", "a (40), b (40)")
