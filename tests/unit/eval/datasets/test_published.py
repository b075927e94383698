"""Published figures: every row is complete, and caveats agree with the known sizes of the data sets."""

import pytest

from court.errors import BadRequest
from eval.datasets.card import CardPublished, card_of
from eval.datasets.items import Protocol
from eval.datasets.known import card_files, caveats, find_card, published, published_on_harm, remarked
from eval.scores.measure import metric_of

PUBLISHED = [(name, row) for name in ("harm-c", "harm-p", "fhm", "mami") for row in published(name)]


@pytest.mark.parametrize(("name", "row"), PUBLISHED, ids=lambda part: getattr(part, "system", part))
def test_row_is_complete_and_names_where_it_was_read(name, row):
    dataset = find_card(name)
    assert row.protocol in dataset.protocols
    assert row.system and row.source and row.read_in and row.remark
    assert 2020 <= row.year <= 2026
    shares = {metric: value for metric, value in row.figures.items() if metric != "mmae"}
    assert shares and all(0.3 < share < 1 for share in shares.values())
    # MMAE is in levels, of which there are three; two-class data sets have none.
    assert "mmae" not in row.figures or (0 < row.figures["mmae"] < 2 and "merged" in dataset.protocols)
    if row.split:
        assert row.split in {split.name for split in dataset.all_splits()}
        assert row.n in (None, dataset.split(row.split).memes)
    else:
        assert "split is not said" in row.remark


def test_figures_are_listed_once():
    keys = [(name, row.split, row.system, row.source) for name, row in PUBLISHED]
    assert len(set(keys)) == len(keys)


def test_rows_are_found_by_data_set():
    assert {name for name, _ in PUBLISHED} == {"harm-c", "harm-p", "fhm", "mami"}
    assert published("harm-p-v0") == published("harm-p") != ()
    assert published("synthetic-fhm") == ()
    assert {id_ for id_ in card_files() if caveats(id_)} == {"harm-c", "harm-p", "harm-p-v0", "fhm"}
    assert caveats("harm-p") == caveats("harm-p-v0") and caveats("harm-p")[:3] == caveats("harm-c")[:3]
    assert "V0" in " ".join(caveats("harm-p-v0")) and caveats("mami") == ()


def test_numbers_in_the_caveats_match_the_data_sets():
    harm_c, harm_p = (tuple(find_card(id_).split("test").labels_of("harm").values()) for id_ in ("harm-c", "harm-p"))
    extreme, _, merged, *_ = caveats("harm-c")
    assert f"Harm-C {harm_c[0]} not harmful and {harm_c[2]} harmful, Harm-P V1 {harm_p[0]} and {harm_p[2]}" in extreme
    shares = [100 * benign / (benign + very) for benign, _, very in (harm_c, harm_p)]
    assert "{:.1f} and {:.1f} %".format(*shares) in extreme
    assert f"Harm-C {harm_c[0]} and {sum(harm_c[1:])}, Harm-P V1 {harm_p[0]} and {sum(harm_p[1:])}" in merged
    fhm = find_card("fhm")
    for name in ("dev_seen", "test_seen", "test_unseen"):
        assert f"{name} {fhm.split(name).memes:,}" in " ".join(caveats("fhm"))


PUBLISHED_OF_A_CARD = {"system": "A", "task": "harm", "split": "test", "figures": {"accuracy": 0.5}}


def card_with(published, **changes):
    card = find_card("harm-c").to_json()
    return card_of({**card, **changes, "published": published}, "mine.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "mood"}, "name one of harm"),
        ({"split": "exam"}, "the split 'exam', which is none"),
        ({"figures": {"accuracy": 77.3}}, "a share between 0 and 1, not percent"),
        ({"figures": {}}, "at least 1 item"),
        ({"n": 0}, "greater than or equal to 1"),
        ({"protocol": "strict"}, "published.0.protocol"),
        ({"task": "targets", "protocol": "merged"}, "has the protocol merged, which targets has not"),
        ({"seen": 1}, "published.0.seen"),
    ],
)
def test_published_figure_without_a_comparable_run_is_refused(change, message):
    with pytest.raises(BadRequest, match=message):
        card_with([{**PUBLISHED_OF_A_CARD, **change}])


def test_published_figure_needs_a_source_and_mmae_may_exceed_one():
    with pytest.raises(BadRequest, match="A needs a source, as the card has no citation"):
        card_with([PUBLISHED_OF_A_CARD], citation="")
    card = card_with([{**PUBLISHED_OF_A_CARD, "figures": {"mmae": 1.2}}])
    assert card.published_on("harm", "test")[0].source == card.citation


def test_published_figures_are_matched_by_task_split_and_protocol():
    also = [{"split": "val"}, {"protocol": "merged"}, {"task": "targets"}]
    card = card_with([{**PUBLISHED_OF_A_CARD, **change, "n": n} for n, change in enumerate([{}, *also], 1)])
    assert [one.n for one in card.published_on("harm", "test")] == [1]
    assert [one.n for one in card.published_on("harm", "test", Protocol.MERGED)] == [3]
    assert [one.n for one in card.published_on("targets", "test")] == [4]
    assert card.published_on("mood", "test") == ()
    (row,) = published_on_harm(card, "test", [Protocol.MERGED, Protocol.EXTREME])
    assert (row.n, row.figures["accuracy"], row.protocol, row.source) == (3, 0.5, Protocol.MERGED, card.citation)
    assert published_on_harm(find_card("climatememes"), "test", [Protocol.PLAIN]) == ()


def test_figure_of_one_jury_is_shown_only_beside_runs_on_its_labels():
    card = find_card("multi3hate").to_json()
    entry = {"system": "A", "split": "all", "figures": {"accuracy": 0.5}}
    with pytest.raises(BadRequest, match="the task 'hate'; name one of hate:US"):
        card_of({**card, "published": [{**entry, "task": "hate"}]}, "mine.toml")
    card = card_of({**card, "published": [{**entry, "task": "hate:US"}]}, "mine.toml")
    assert len(card.published_on("hate:US", "all")) == 1 and card.published_on("hate:DE", "all") == ()
    chosen = card_of(card.with_variant("US").to_json(), "a manifest")
    assert len(chosen.published_on("hate", "all")) == 1 and chosen.published_on("hate", "all:de") == ()
    assert card.with_variant("DE").published_on("hate", "all") == ()


def test_row_on_another_number_of_memes_says_so():
    entry = {**PUBLISHED_OF_A_CARD, "protocol": "merged", "n": 238, "remark": "R."}
    row = CardPublished(**entry)
    ours = {Protocol.MERGED: {235, 1200}}
    assert remarked(row, "test", ours).remark == "R. On 238 memes, and not on 235 or 1,200 as here."
    for same in (({Protocol.MERGED: {238}}, "test"), ({}, "test"), (ours, "val")):
        assert remarked(row, same[1], same[0]) == row


def test_published_figures_of_cards_use_existing_metrics():
    shown = 0
    for id_ in card_files():
        card = find_card(id_)
        for one in card.published:
            labels = next(task.labels for task in card.all_tasks() if task.id == one.task)
            assert all(metric_of(name, labels) for name in one.figures)
            shown += 1
    assert shown == 28


def test_accuracies_on_climate_memes_are_multiples_of_one_over_n():
    for one in find_card("climatememes").published_on("stance", "test"):
        value = one.figures["accuracy"]
        parts = [n for n in (235, 236, 237, 238) if abs(round(value * n) / n - value) < 0.000051]
        assert parts == [one.n], one.system
