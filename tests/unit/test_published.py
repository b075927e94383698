"""Published figures: every row says what it is, and the caveats agree with what is known of the data sets."""

import pytest

from eval.datasets.known import DATASETS
from eval.scores.published import CAVEATS, PUBLISHED, caveats, published


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.dataset}: {row.system}")
def test_a_row_says_what_it_is_and_where_it_was_read(row):
    dataset = DATASETS[row.dataset]
    assert row.protocol in dataset.protocols
    assert row.system and row.source and row.read_in and row.remark
    assert 2020 <= row.year <= 2026
    shares = [row.accuracy, row.macro_f1, row.auroc]
    assert any(share is not None for share in shares)
    assert all(0.3 < share < 1 for share in shares if share is not None)
    # MMAE is in levels, of which there are three, and two-class data sets have none.
    assert row.mmae is None or (0 < row.mmae < 2 and "merged" in dataset.protocols)
    if row.split:
        assert row.split in dataset.splits
        assert row.n in (None, dataset.splits[row.split].memes)
    else:
        assert "split is not said" in row.remark


def test_no_figure_stands_twice():
    keys = [(row.dataset, row.split, row.system, row.source) for row in PUBLISHED]
    assert len(set(keys)) == len(keys)


def test_rows_by_data_set():
    assert {row.dataset for row in PUBLISHED} == {"harm-c", "harm-p", "fhm", "mami"}
    assert sum(len(published(id_)) for id_ in ("harm-c", "harm-p", "fhm", "mami")) == len(PUBLISHED)
    assert published("harm-p-v0") == published("harm-p") != ()
    assert published("synthetic-fhm") == ()
    assert {id_ for datasets, _ in CAVEATS for id_ in datasets} == {"harm-c", "harm-p", "harm-p-v0", "fhm"}
    assert "V0" in " ".join(caveats("harm-p-v0")) and caveats("mami") == ()


def test_the_caveats_count_as_the_data_sets_do():
    harm_c, harm_p = (tuple(DATASETS[id_].splits["test"].classes.values()) for id_ in ("harm-c", "harm-p"))
    extreme, merged = CAVEATS[0][1], CAVEATS[2][1]
    assert f"Harm-C {harm_c[0]} not harmful and {harm_c[2]} harmful, Harm-P V1 {harm_p[0]} and {harm_p[2]}" in extreme
    shares = [100 * benign / (benign + very) for benign, _, very in (harm_c, harm_p)]
    assert "{:.1f} and {:.1f} %".format(*shares) in extreme
    assert f"Harm-C {harm_c[0]} and {sum(harm_c[1:])}, Harm-P V1 {harm_p[0]} and {sum(harm_p[1:])}" in merged
    splits = DATASETS["fhm"].splits
    for name in ("dev_seen", "test_seen", "test_unseen"):
        assert f"{name} {splits[name].memes:,}" in " ".join(caveats("fhm"))
