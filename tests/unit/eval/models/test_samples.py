"""Tests of drawing memes from several data sets for an arena or probe: selection, ids, and the manifest."""

import asyncio
import json
from pathlib import Path

import pytest

from court.errors import BadRequest
from eval.datasets.items import Protocol
from eval.datasets.known import find_card
from eval.models.samples import Sample, Samples, one_set, read_memes, read_samples
from eval.synthetic.scenes import draw_meme
from tests.support.pictures import encode
from tests.support.probing import write_data_set


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_data_set(root / "fhm")
    (root / "harm" / "images").mkdir(parents=True)
    labels = ["not harmful"] * 4 + ["somewhat harmful"] * 4 + ["very harmful"] * 4
    rows = []
    for number, label in enumerate(labels):
        text = f"blueland and tea, number {number}"
        (root / "harm" / "images" / f"{number}.png").write_bytes(encode(draw_meme("cat", text, size=(64, 48)), "PNG"))
        rows.append({"id": f"m{number}", "image": f"{number}.png", "labels": [label], "text": text})
    (root / "harm" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def read_samples_of(samples, **options):
    found = asyncio.run(read_memes(samples, seed=0, **options))
    return found, found.described["samples"]


def a_sample(dataset, data, split, **changes):
    return Sample(dataset=dataset, data=data, split=split, **changes)


def two_sets(places, **changes):
    harm = a_sample("harm-c", places / "harm", "test", memes=4)
    fhm = a_sample("fhm", places / "fhm", "dev_seen")
    return Samples((harm, fhm), mixed=True, **changes)


def test_memes_of_two_sets_have_unique_ids_and_the_manifest_has_all_digests(places):
    memes, sets = read_samples_of(two_sets(places))
    names = [meme.id.split("/")[0] for meme in memes.memes]
    assert names == ["harm-c"] * 4 + ["fhm"] * 10 and len({meme.id for meme in memes.memes}) == 14
    assert [meme.dataset for meme in memes.memes] == names
    assert [(drawn.dataset, drawn.split, drawn.limit, drawn.memes, drawn.protocol) for drawn in sets] == [
        ("harm-c", "test", 4, 4, Protocol.MERGED),
        ("fhm", "dev_seen", None, 10, Protocol.PLAIN),
    ]
    assert set(memes.described["data"]) == {f"{drawn.dataset}/{name}" for drawn in sets for name in drawn.files}
    assert all(len(digest) == 64 for drawn in sets for digest in drawn.files.values())
    assert two_sets(places).dataset == "harm-c + fhm" and two_sets(places).split == "test + dev_seen"


def test_only_harmful_memes_are_selected_by_the_named_protocol(places):
    memes, sets = read_samples_of(two_sets(places, only="harmful"))
    assert all(meme.harmful for meme in memes.memes) and [drawn.memes for drawn in sets] == [4, 8]
    every = {}
    for protocol in (Protocol.MERGED, Protocol.EXTREME):
        harm = a_sample("harm-c", places / "harm", "test", protocol=protocol)
        found, _ = read_samples_of(Samples((harm,), "harmful"))
        every[protocol] = {meme.source_label for meme in found.memes}
    assert every[Protocol.MERGED] == {"somewhat harmful", "very harmful"}
    assert every[Protocol.EXTREME] == {"very harmful"}
    # When drawing from all memes, a named protocol excludes those that it drops.
    found, _ = read_samples_of(Samples((a_sample("harm-c", places / "harm", "test", protocol=Protocol.EXTREME),)))
    assert {meme.source_label for meme in found.memes} == {"not harmful", "very harmful"}


def test_single_set_is_read_without_set_names(places):
    memes, sets = read_samples_of(one_set(find_card("fhm"), places / "fhm", "dev_seen", limit=None))
    assert [(one.only, one.memes) for one in sets] == [("all", 10)]
    assert [meme.id for meme in memes.memes] == [str(number) for number in range(1, 11)]
    assert list(memes.described["data"]) == ["dev_seen.jsonl"]
    _, sets = read_samples_of(one_set(find_card("fhm"), places / "fhm", "dev_seen", limit=3, only="harmful"))
    assert [(drawn.only, drawn.memes) for drawn in sets] == [("harmful", 3)]


def test_filter_receives_ids_as_they_are_shown(places):
    memes, _ = read_samples_of(two_sets(places), keep=lambda meme: meme == "fhm/3")
    assert [meme.id for meme in memes.memes] == ["fhm/3"]


def test_sample_table_is_read_and_its_faults_are_named():
    table = {"sample": [{"dataset": "harm-c", "data": "c", "memes": 5}, {"dataset": "mami", "data": "/m"}], "x": 1}
    read = read_samples({**table, "only": "harmful"}, "[arena]", Path("base"))
    assert read.only == "harmful" and read.mixed
    assert [(sample.dataset.id, str(sample.data), sample.split, sample.memes) for sample in read.sets] == [
        ("harm-c", "base/c", "test", 5),
        ("mami", "/m", "test", None),
    ]
    assert read_samples({"only": "harmful"}, "[arena]", Path()) == "harmful"
    assert read_samples({}, "[arena]", Path()) == "all"
    for entries, message in (
        ([{"dataset": "harm-x", "data": "c"}], "no data set 'harm-x'"),
        ([{"dataset": "fhm", "data": "a"}, {"dataset": "fhm", "data": "b"}], "names fhm twice"),
        ([{"dataset": "fhm", "data": "a", "protocol": "extreme"}], "fhm has no protocol extreme"),
        ([{"dataset": "fhm", "data": "a", "memes": 0}], "sample.0.memes"),
        ([{"dataset": "fhm", "data": "a", "limit": 3}], "sample.0.limit"),
        ([{"dataset": "fhm"}], "sample.0.data"),
    ):
        with pytest.raises(BadRequest, match=message) as caught:
            read_samples({"sample": entries}, "[arena]", Path())
        assert caught.value.reason == "SAMPLE_SETTINGS", json.dumps(entries)
    with pytest.raises(BadRequest, match="only"):
        read_samples({"only": "benign"}, "[arena]", Path())
