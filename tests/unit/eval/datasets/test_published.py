"""Published figures: every row is complete, and caveats agree with the known sizes of the data sets."""

import pytest

from court.errors import BadRequest
from eval.datasets.card import card_of
from eval.datasets.items import Protocol
from eval.datasets.known import card_files, find_card
from eval.scores.measure import metric_of

READ = [(id_, row) for id_ in ("harm-c", "harm-p", "fhm", "mami") for row in find_card(id_).published]


@pytest.mark.parametrize(("id_", "row"), READ, ids=lambda value: getattr(value, "system", value))
def test_row_is_complete_and_names_where_it_was_read(id_, row):
    dataset = find_card(id_)
    assert row.task == dataset.court_task.id and row.protocol in dataset.protocols
    assert row.source and row.read_in and row.remark and 2020 <= row.year <= 2026
    assert all(0.3 < share < 1 for name, share in row.figures.items() if name != "mmae")
    # MMAE is in levels, of which there are three; two-class data sets have none.
    assert "mmae" not in row.figures or (0 < row.figures["mmae"] < 2 and "merged" in dataset.protocols)
    assert row.n in (None, dataset.split(row.split).memes) if row.split else "split is not said" in row.remark


def test_numbers_in_the_caveats_match_the_data_sets():
    harm_c, harm_p = (tuple(find_card(id_).split("test").labels_of("harm").values()) for id_ in ("harm-c", "harm-p"))
    caveats = {id_: " ".join(find_card(id_).caveats) for id_ in ("harm-c", "harm-p", "harm-p-v0", "fhm")}
    extreme = f"Harm-C {harm_c[0]} not harmful and {harm_c[2]} harmful, Harm-P V1 {harm_p[0]} and {harm_p[2]}"
    shares = [100 * benign / (benign + very) for benign, _, very in (harm_c, harm_p)]
    merged = f"Harm-C {harm_c[0]} and {sum(harm_c[1:])}, Harm-P V1 {harm_p[0]} and {sum(harm_p[1:])}"
    for id_ in ("harm-c", "harm-p", "harm-p-v0"):
        assert (
            extreme in caveats[id_] and merged in caveats[id_] and "{:.1f} and {:.1f} %".format(*shares) in caveats[id_]
        )
    fhm = find_card("fhm")
    for name in ("dev_seen", "test_seen", "test_unseen"):
        assert f"{name} {fhm.split(name).memes:,}" in caveats["fhm"]


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
    unsaid = card_with([{**PUBLISHED_OF_A_CARD, "split": ""}])
    assert len(unsaid.published_on("harm", "test")) == len(unsaid.published_on("harm", "val")) == 1


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


def test_published_figures_of_cards_use_existing_metrics():
    shown = 0
    for id_ in card_files():
        card = find_card(id_)
        for one in card.published:
            labels = next(task.labels for task in card.all_tasks() if task.id == one.task)
            assert all(metric_of(name, labels) for name in one.figures)
            shown += 1
    assert shown == 28 + len(READ) + len(find_card("harm-p-v0").published)
