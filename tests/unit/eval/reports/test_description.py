"""Descriptions of data sets: each figure computed anew by pandas, SciPy and statsmodels."""

import json
import random
import re
from itertools import combinations

import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import chi2_contingency, fisher_exact, mannwhitneyu
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from eval.cli import cli
from eval.scores.description import MONTH, facet_of, month_of, pairs_table
from tests.support.cards import write_table

FRAMES = ["REAL", "HOAX", "CAUSE", "PROSPECT"]
SECRET = "a heron that nobody may read"


def run(*arguments):
    return CliRunner().invoke(cli, ["datasets", "describe", *map(str, arguments)])


def tables_of(*arguments):
    ran = run(*arguments, "--json")
    assert ran.exit_code == 0, ran.output
    return {one["key"]: one for one in json.loads(ran.stdout)["tables"]}


@pytest.fixture(scope="module")
def memes(tmp_path_factory):
    """A table like that of ClimateMemes, and the same read by pandas."""
    drawn, rows = random.Random(7), []
    for n in range(420):
        stance = drawn.choices(["convinced", "skeptical", "neither"], [6, 3, 0.2])[0]
        likely = {"HOAX": 0.7 if stance == "skeptical" else 0.15, "REAL": 0.6 if n % 4 else 0.1}
        frames = "; ".join(one for one in FRAMES if drawn.random() < likely.get(one, 0.3))
        day = pd.Timestamp("2020-01-20") + pd.Timedelta(days=drawn.randrange(150))
        text = " ".join([SECRET] * (1 + drawn.randrange(9) + 3 * ("HOAX" in frames))) + f" {n}"
        forum = f"forum{min(drawn.randrange(30), drawn.randrange(30))}"
        yes = ["Yes" if one in frames else "no" for one in FRAMES[:2]]
        split = "train" if n % 3 else "test"
        rows.append((f"{n}.png", text, stance, frames, forum, day.isoformat(), split, *yes))
    header = ("filename", "text", "stance", "frames", "subreddit", "date", "split", "is_real", "is_hoax")
    file = tmp_path_factory.mktemp("memes") / "memes.csv"
    write_table(file, header, rows)
    frame = pd.read_csv(file)
    for one in FRAMES:
        frame[one] = frame["frames"].str.contains(one)
    return file, frame


def holm(ps):
    return multipletests(ps, method="holm")[1].tolist()


def of_column(found, columns):
    """p-values of labels against the values of a column, those of fewer than ten memes together."""
    sizes = columns.iloc[:, 0].map(columns.iloc[:, 0].value_counts())
    together = columns.iloc[:, 0].where(sizes >= 10, "few")
    return [chi2_contingency(pd.crosstab(found[one].astype(bool), together), correction=False).pvalue for one in FRAMES]


def test_frames_by_stance_month_and_subreddit_match_pandas_and_scipy(memes):
    file, frame = memes
    found = tables_of(file, "--task", "frames", "--by", "stance", "--by", "month", "--by", "subreddit")
    known = frame[frame["frames"].notna()].assign(month=lambda one: one["date"].str[:7])
    for axis in ("stance", "month"):
        table = found[f"frames-by-{axis}"]
        head, (*rows, last) = table["head"], table["rows"]
        for name, n, *counts in rows:
            here = known[known[axis] == name]
            assert n == len(here) and counts == [int(here[label].sum()) for label in head[2:]]
        assert sum(row[1] for row in rows) == len(known)
        expected = dict(zip(FRAMES, holm(of_column(known, known[[axis]])), strict=True))
        assert last[2:] == pytest.approx([expected[label] for label in head[2:]], rel=1e-9)
    assert [row[0] for row in found["frames-by-month"]["rows"][:-1]] == sorted(known["month"].unique())
    subreddits = found["frames-by-subreddit"]["rows"]
    rare = ~known["subreddit"].isin([row[0] for row in subreddits[:12]])
    assert len(subreddits) == 14
    assert subreddits[12][:2] == [f"{frame['subreddit'].nunique() - 12} others", int(rare.sum())]
    assert "frames-by-split" in found and "stance-by-month" not in found


def test_labels_and_pairs_match_statsmodels(memes):
    file, frame = memes
    found = tables_of(file, "--task", "frames")
    known = frame[frame["frames"].notna()]
    for label, count, share in found["labels-frames"]["rows"]:
        low, high = proportion_confint(count, len(known), method="wilson")
        assert count == known[label].sum()
        assert (share["value"], share["low"], share["high"]) == pytest.approx((count / len(known), low, high))
    ps, odds = {}, {}
    for pair in combinations(FRAMES, 2):
        test = fisher_exact(pd.crosstab(*(known[one] for one in pair)))
        ps[frozenset(pair)], odds[frozenset(pair)] = test.pvalue, test.statistic
    adjusted = dict(zip(ps, holm(list(ps.values())), strict=True))
    rows = found["pairs-frames"]["rows"]
    assert len(rows) == 6 and [row[-1] for row in rows] == sorted(row[-1] for row in rows)
    for names, both, expected, ratio, *tested in rows:
        a, b = names.split(" + ")
        assert both == (known[a] & known[b]).sum()
        assert expected == pytest.approx(known[a].sum() * known[b].sum() / len(known))
        key = frozenset((a, b))
        assert (ratio, *tested) == pytest.approx((odds[key], ps[key], adjusted[key]))
    assert min(adjusted.values()) < 0.05


def test_lengths_match_scipy_and_columns_of_yes_and_no_are_labels(memes):
    file, frame = memes
    found = tables_of(file, "--task", "stance", "--task", "said=is_real,is_hoax", "--by", "said")
    words = frame["text"].str.split().str.len()
    rows = found["lengths-said"]["rows"]
    ps = []
    for column, row in zip(("is_real", "is_hoax"), sorted(rows, reverse=True), strict=True):
        has = frame[column] == "Yes"
        assert row[:2] == [column, int(has.sum())]
        assert row[2:5] == pytest.approx(words[has].quantile([0.25, 0.5, 0.75]).tolist())
        ps.append(mannwhitneyu(words[has], words[~has]).pvalue)
    assert [row[-1] for row in sorted(rows, reverse=True)] == pytest.approx(holm(ps))
    # A meme may have both: the smaller of two corrected p-values stands for the property.
    table = found["stance-by-said"]
    for label, p in zip(table["head"][2:], table["rows"][-1][2:], strict=True):
        each = [
            fisher_exact(pd.crosstab(frame[one], frame["stance"] == label)).pvalue for one in ("is_real", "is_hoax")
        ]
        table["expected"] = [*table.get("expected", []), min(multipletests(each, method="holm")[1])]
        assert p is not None
    assert table["rows"][-1][2:] == pytest.approx(holm(table["expected"]))


def test_page_shows_tables_without_texts(memes, tmp_path):
    page = tmp_path / "page.html"
    ran = run(memes[0], "--task", "frames", "--by", "stance", "--html", page)
    assert ran.exit_code == 0, ran.output
    written = page.read_text()
    assert "frames by stance" in written and "Labels together: frames" in written
    assert "Labels together: frames" in ran.output
    assert not any(SECRET in one or ".png" in one for one in (written, ran.output))


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("mood", "no column mood.*there are frames, label"),
        ("text", "text has 420 different values: these are texts, and no groups"),
        ("filename", "filename has 420 different values"),
    ],
)
def test_columns_that_are_no_groups_are_refused(memes, by, message):
    ran = run(memes[0], "--task", "frames", "--by", by)
    assert ran.exit_code == 1
    assert re.search(message, ran.output), ran.output


def test_doubles_between_splits_are_counted(tmp_path):
    words = re.findall(
        r"\w+", "frogs tea chess rain bridge winter piano cloud market lamp river bread garden train goat"
    )
    texts = [" ".join(random.Random(n).sample(words, 5)) for n in range(30)]
    rows = [(f"m{n}", f"{n}.png", texts[n], ("ok", "bad")[n % 2], ("train", "test")[n >= 20]) for n in range(30)]
    # One meme is in both splits, and the words and picture of another.
    rows += [("m0", "0.png", texts[0], "ok", "test"), ("x", "3.png", texts[3].upper(), "bad", "test")]
    write_table(tmp_path / "memes.csv", ("id", "filename", "text", "label", "split"), rows)
    found = tables_of(tmp_path / "memes.csv", "--column", "id=id")["findings"]["rows"]
    assert ["text twice", "train + test", 2] in found and ["id twice", "train + test", 1] in found


def test_months_are_read_from_dates_and_seconds():
    dates = ("2024-05-01T10:00", "2024/5/31", "1714557600", 1714557600.0, "May 2024", "", None, "2024-13-01", "20240")
    assert list(map(month_of, dates)) == ["2024-05"] * 4 + [""] * 5
    assert facet_of(MONTH, [("2024-05",), ("2023-12",), None]).values == ("2023-12", "2024-05")


def test_texts_of_a_small_table_are_no_groups_and_months_need_dates(tmp_path):
    rows = [(f"pond {n}", ("ok", "bad")[n % 2], f"forum {n}") for n in range(30)]
    write_table(tmp_path / "memes.csv", ("text", "label", "group"), rows)
    # Groups of one meme each are left out where nobody asked for them.
    assert "label-by-group" not in tables_of(tmp_path / "memes.csv")
    for by, message in (("text", "these are texts"), ("month", "name it with --date COLUMN")):
        ran = run(tmp_path / "memes.csv", "--by", by)
        assert ran.exit_code == 1 and message in ran.output and "pond 1" not in ran.output


def test_odds_of_labels_that_never_meet_are_no_number():
    table = pairs_table(facet_of("kind", [("a", "b"), ("a", "b"), ("c",), ()]))
    assert json.dumps([row[3] for row in table.rows], allow_nan=False) == "[null, 0.0, 0.0]"
