"""Tests of data sets in tar shards: rows by key, pictures read in place, and malicious archives."""

import asyncio
import gzip
import json
import shutil
import tarfile

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from court.errors import BadRequest
from court.meme import LIMITS
from eval.cli import cli
from eval.datasets.card import read_card
from eval.datasets.card_draft import draft_card
from eval.datasets.card_split import CardReader
from eval.datasets.check import check
from eval.datasets.faults import DatasetFaultKind
from eval.datasets.known import dataset_of_card
from eval.datasets.read import read_split
from eval.runs.folder import RunFolder
from eval.runs.precedents import _digests
from eval.runs.ray_worker import Driver
from eval.synthetic.make import Layout, make
from retrieval.library import shards
from retrieval.library.picture_files import has_picture, picture_size, read_picture
from retrieval.library.picture_import import _file, _NoPicture
from tests.support.card_memes import read_by_card
from tests.support.encoders import png_of
from tests.support.shards import member_of, write_shard
from tests.unit.test_card_layouts import own_card

FIELDS = {"id": "@key", "text": "txt", "picture": "@picture"}


def card_of_shards(files=("*.tar",), **changes):
    return own_card("tar", list(files), **({"fields": FIELDS} | changes))


def sample_of(key, label=0, text="a pond", picture=b"picture"):
    return [
        (f"{key}.jpg", picture),
        (f"{key}.json", json.dumps({"label": label}).encode()),
        (f"{key}.txt", text.encode()),
    ]


def read(place, card=None):
    found = read_by_card(card or card_of_shards(), place, "all")
    assert len(found.memes) + len(found.excluded) + found.refused + found.elsewhere == found.rows
    return found


@pytest.mark.parametrize("has_picture_member", [True, False])
@pytest.mark.parametrize("name", ["train.tar/0/first.jpg", "../secret.jpg", "s3://memes/set/a.jpg", ["a"]])
def test_text_in_a_sample_cannot_choose_its_picture(tmp_path, has_picture_member, name):
    """A sample's picture is its own member, whatever its texts name; a sample without such a member has no picture."""
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    json_ = ("m.json", json.dumps({"label": 1, "@picture": name, "@key": "first"}).encode())
    text, picture = ("m.@picture.txt", b"train.tar/0/first.jpg"), ("m.jpg", b"own")
    # In each order: a member read later must not override one read earlier.
    for place, members in enumerate(([json_, text, picture], [picture, json_, text])):
        data = tmp_path / f"data-{place}"
        write_shard(
            data / "train.tar",
            [*sample_of("first"), *(member for member in members if has_picture_member or member != picture)],
        )
        found = read(data)
        assert found.problems == () and [meme.id for meme in found.memes] == ["first", "m"]
        path = found.picture_of(found.memes[1])
        assert (read_picture(path) == b"own") if has_picture_member else (path is None and found.memes[1].image == "")


def test_reading_a_picture_parses_only_its_own_header(tmp_path, monkeypatch):
    write_shard(tmp_path / "train.tar", sample_of("a") + sample_of("b"))
    headers = []
    monkeypatch.setattr(shards, "_member", lambda info, parse=shards._member: headers.append(info.name) or parse(info))

    def counting_headers(do):
        headers.clear()
        return do(), len(headers)

    # Reading the row parses no header of its picture again: the picture's place is in its name.
    rows, count = counting_headers(lambda: read_split(dataset_of_card(card_of_shards()), tmp_path, "all").memes)
    assert count == 6 + len(["the first existing picture, by which the folder is found"])
    images = [row.image for row in rows]
    assert counting_headers(lambda: [_file(image, tmp_path) for image in images]) == ([b"picture", b"picture"], 2)
    assert counting_headers(lambda: bool(_digests(images, tmp_path))) == (True, 2)
    assert counting_headers(lambda: read_picture(tmp_path / images[0])) == (b"picture", 1)
    # A missing picture is still distinguished from an unreadable one.
    with pytest.raises(_NoPicture, match="its picture is missing"):
        _file(images[0].replace("a.jpg", "c.jpg"), tmp_path)


def test_each_key_is_a_row_and_its_picture_is_read_in_place(tmp_path):
    for shard in range(2):
        keys = range(shard * 3, shard * 3 + 3)
        members = [member for n in keys for member in sample_of(f"./m{n}", n % 2, f"pond {n}", b"picture %d" % n)]
        write_shard(tmp_path / f"train-{shard}.tar", members)
    found = read(tmp_path)
    assert [meme.id for meme in found.memes] == [f"m{n}" for n in range(6)]
    assert [meme.gold["harm"] for meme in found.memes] == [("harmless",), ("harmful",)] * 3
    assert found.memes[4].text == "pond 4" and found.memes[4].image.startswith("train-1.tar/")
    paths = [found.picture_of(meme) for meme in found.memes]
    assert [read_picture(path) for path in paths] == [b"picture %d" % n for n in range(6)]
    assert picture_size(paths[0]) == len(b"picture 0")
    assert set(found.files) == {"train-0.tar", "train-1.tar"}
    # Nothing was unpacked beside the shards.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train-0.tar", "train-1.tar"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_folders_are_read_in_every_tar_format(tmp_path, form):
    deep = "/".join(["folder" * 4] * 6)
    members = [member_of("folder", type=tarfile.DIRTYPE), *sample_of(f"{deep}/pond", 1, picture=b"deep")]
    write_shard(tmp_path / "a.tar", members, format=form)
    found = read(tmp_path)
    assert [meme.id for meme in found.memes] == [f"{deep}/pond"]
    assert read_picture(found.picture_of(found.memes[0])) == b"deep"


def test_pictures_of_a_table_are_found_in_shards_by_name(tmp_path):
    (tmp_path / "rows.csv").write_text(
        "id,image,text,label\nm1,m1.png,a,1\nm2,M2.PNG,b,0\nm3,img/m3,c,0\nm4,m4.png,d,0\nm5,../m1.png,e,0\n"
    )
    pictures = [(f"img/m{n}.png", b"picture %d" % n) for n in (1, 2, 3)]
    write_shard(tmp_path / "shards" / "p-0.tar", pictures[:2])
    write_shard(tmp_path / "shards" / "p-1.tar", pictures[2:])
    card = own_card("csv", ["rows.csv"], layout={"kind": "csv", "pictures": ["shards/*.tar"]})
    found = read(tmp_path, card)
    paths = {meme.id: found.picture_of(meme) for meme in found.memes}
    assert {id_: path and read_picture(path) for id_, path in paths.items()} == {
        "m1": b"picture 1",
        "m2": b"picture 2",
        "m3": b"picture 3",
        "m4": None,
    }
    (problem,) = found.problems
    assert "leads out" in problem.reason
    write_shard(tmp_path / "shards" / "p-2.tar", [("other/m1.png", b"another")])
    with pytest.raises(BadRequest, match="could be any of"):
        found = read(tmp_path, card)
        found.picture_of(found.memes[0])


def test_run_names_each_picture_by_its_place_in_a_shard(tmp_path):
    write_shard(
        tmp_path / "a.tar", [member for n in range(3) for member in sample_of(f"m{n}", n % 2, picture=png_of(n))]
    )
    split = read_split(dataset_of_card(card_of_shards()), tmp_path, "all")
    assert split.pictures == tmp_path
    assert [read_picture(split.pictures / meme.image) for meme in split.memes] == [png_of(n) for n in range(3)]


def test_moved_picture_is_missing_and_never_replaced_by_another(tmp_path):
    write_shard(tmp_path / "a.tar", [member for n in range(2) for member in sample_of(f"m{n}")])
    found = read(tmp_path)
    first, second = (found.picture_of(meme) for meme in found.memes)
    write_shard(tmp_path / "a.tar", sample_of("m1"))
    assert not has_picture(first) and not has_picture(second)
    with pytest.raises(FileNotFoundError):
        read_picture(second)
    for name in ("a.tar/7/m1.jpg", "a.tar/0/m9.jpg", "a.tar/99999999/m1.jpg", "a.tar/0", "b.tar/0/m1.jpg"):
        assert not has_picture(tmp_path / name)


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("../m1.jpg", b"x"), "its member ../m1.jpg has a name that leads out of the archive"),
        (("/etc/m1.jpg", b"x"), "its member /etc/m1.jpg has a name that leads out of the archive"),
        (("C:\\m1.jpg", b"x"), "its member C:\\m1.jpg has a name that leads out of the archive"),
        (member_of("m1.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "its member m1.jpg is a link"),
        (member_of("m1.jpg", type=tarfile.LNKTYPE, linkname="m0.jpg"), "its member m1.jpg is a link"),
        (member_of("m1.jpg", type=tarfile.CHRTYPE), "its member m1.jpg is no plain file"),
        (member_of("m1.jpg", type=tarfile.FIFOTYPE), "its member m1.jpg is no plain file"),
        (member_of("m1.json", size=LIMITS.max_bytes + 1), "its member m1.json is larger than 32 MiB"),
        (("m1.txt", b"x" * ((1 << 20) + 1)), "its member m1.txt is larger than 1024 KiB"),
        (("m1.txt", b"\xff\xfe\xfd"), "its member m1.txt is not UTF-8"),
        (("m1.json", b"[1]"), "its member m1.json is no JSON object"),
        (("m1", b"x"), "its member m1 has no ending to say what it is"),
        (("m1\x1b[2J.txt", b"\xff"), "its member 'm1\\x1b[2J.txt' is not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_member_costs_only_its_row_and_is_named(tmp_path, member, reason):
    write_shard(tmp_path / "a.tar", [*sample_of("m0"), member, *sample_of("m2")])
    found = read(tmp_path)
    assert [meme.id for meme in found.memes] == ["m0", "m2"]
    assert [(p.source, p.line, p.reason) for p in found.problems] == [("a.tar", 2, reason)]


def test_duplicate_keys_and_members_are_refused(tmp_path):
    same_name = [("m1.jpg", b"one"), ("m1.jpg", b"two")]
    two_pictures = [("m2.jpg", b"one"), ("m2.png", b"two")]
    write_shard(
        tmp_path / "a.tar", [*sample_of("m0"), *same_name, *two_pictures, *sample_of("m3"), *sample_of("m0", 1)]
    )
    write_shard(tmp_path / "b.tar", sample_of("m3"))
    found = read(tmp_path)
    assert [meme.id for meme in found.memes] == ["m0", "m3"]
    assert [(p.source, p.line, p.reason) for p in found.problems] == [
        ("a.tar", 2, "its member m1.jpg stands in the archive twice"),
        ("a.tar", 3, "its member m2.png is a second picture"),
        ("a.tar", 5, "the key of m0.jpg stood before: members of one key go side by side"),
        ("b.tar", 1, "column @key: its id stands in the file already"),
    ]


def test_hidden_files_are_not_rows(tmp_path):
    hidden = [("._m0.jpg", b"x"), (".DS_Store", b"x"), ("__index__.json", b"{}")]
    write_shard(tmp_path / "a.tar", [*hidden, *sample_of("m0")])
    assert read(tmp_path).rows == 1


def damage(path, at, content):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: damage(path, 3 * 1024, b"\xff" * 100), r"m0\.txt: .*header is damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[: 3 * 1024 + 600]), r"m1\.jpg: .*unexpected end"),
        (lambda path: path.write_bytes(path.read_bytes()[: 3 * 1024 + 515]), r"m1\.jpg: .*the content is cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[: 3 * 1024 + 300]), r"m0\.txt: .*cut short"),
        (lambda path: path.write_bytes(path.read_bytes()[: 3 * 1024]), r"m0\.txt: .*cut short"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), r"m1\.txt: .*more follows its end"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes())), r"is compressed.*gunzip"),
        (lambda path: path.write_bytes(b"no archive" * 100), "no whole tar file"),
        (lambda path: path.write_bytes(b""), "no whole tar file"),
    ],
)
def test_error_on_a_damaged_archive_names_file_and_member(tmp_path, spoil, message):
    path = tmp_path / "a.tar"
    write_shard(path, [*sample_of("m0"), *sample_of("m1")])
    spoil(path)
    with pytest.raises(
        BadRequest, match=rf"a\.tar.*{message}" if not message.startswith("m") else rf"a\.tar.*member {message}"
    ):
        read(tmp_path)


def header(name, size_field=b"00000000000", kind=b"0"):
    """A header with a valid checksum whose size field may hold anything."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size_field.ljust(12, b"\0")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "block",
    [
        # Minus 1024 bytes: the next header would be the one before this.
        header("m1.jpg", b"\xff" * 10 + b"\xfc\x00"),
        # A long name of sixteen exabytes, and one of minus one byte.
        header("m1.jpg", b"\x80" + b"\0" * 3 + b"\x7f" * 8, b"L"),
        header("m1.jpg", b"\xff" * 12, b"L"),
        header("m1.jpg", b"\xff" * 12, b"x"),
        header("m1.jpg", b"77777777777"),
        # Extended headers that describe each other.
        header("m1.jpg", kind=b"x") * 3000,
    ],
)
def test_malicious_headers_end_in_an_error(tmp_path, block):
    write_shard(tmp_path / "a.tar", sample_of("m0"))
    archive = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(archive[: 3 * 1024] + block + archive[3 * 1024 :])
    with pytest.raises(BadRequest, match="no whole tar file"):
        read(tmp_path)


def test_shard_that_links_out_of_the_data_set_is_not_read(tmp_path):
    write_shard(tmp_path / "outside.tar", sample_of("m0"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.tar").symlink_to(tmp_path / "outside.tar")
    with pytest.raises(BadRequest, match="leads out"):
        read(data)
    row = {"id": "m0", "text": "a pond", "image": "a.tar/0/m0.jpg", "label": 0}
    (data / "rows.jsonl").write_text(json.dumps(row) + "\n")
    found = read(data, own_card("jsonl", ["rows.jsonl"], layout={"kind": "jsonl"}))
    assert found.picture_of(found.memes[0]) is None
    (data / "rows.jsonl").write_text(json.dumps(row | {"image": "m0.jpg"}) + "\n")
    with pytest.raises(BadRequest, match="leads out"):
        read(data, own_card("jsonl", ["rows.jsonl"], layout={"kind": "jsonl", "pictures": ["a.tar"]}))


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d/a", "../e", "", "."]),
        st.sampled_from([".jpg", ".png", ".json", ".txt", "", ".npy"]),
        st.sampled_from([b"", b"picture", b'{"label": 1}', b'{"label": "?"}', b"\xff"]),
    ),
    max_size=20,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MEMBERS)
def test_every_key_is_read_or_refused_once(tmp_path, members):
    members = [(f"{key}{ending}", content) for key, ending, content in members if key + ending]
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    write_shard(tmp_path / "data" / "a.tar", members)
    reader = CardReader(card_of_shards(), tmp_path / "data", "all")
    memes = list(reader)
    keys = [key_of(name) for name, _ in members if not name.rpartition("/")[2].startswith(".")]
    groups = sum(1 for place, key in enumerate(keys) if not place or keys[place - 1] != key)
    assert reader.rows == groups == len(memes) + reader.refused + len(reader.excluded) + reader.elsewhere


def key_of(name):
    folder, _, last = name.rpartition("/")
    return folder, last.partition(".")[0]


def test_check_reports_faulty_members_and_duplicate_pictures(tmp_path):
    link = member_of("m9.png", type=tarfile.SYMTYPE, linkname="m0.png")
    (tmp_path / "rows.jsonl").write_text(
        "".join(
            json.dumps({"id": f"m{n}", "text": "a pond" if n < 2 else f"{n}", "image": f"m{n}.png", "label": n % 2})
            + "\n"
            for n in (0, 1, 2, 9)
        )
    )
    write_shard(tmp_path / "p.tar", [("m0.png", png_of(0)), ("m1.png", png_of(0)), ("m2.png", png_of(2)), link])
    card = own_card("jsonl", ["rows.jsonl"], layout={"kind": "jsonl", "pictures": ["p.tar"]})
    report = asyncio.run(check(dataset_of_card(card), tmp_path))
    found = {finding.kind: finding.where for finding in report.findings}
    assert found[DatasetFaultKind.PICTURES_DOUBTFUL] == ("p.tar: its member m9.png is a link",)
    assert found[DatasetFaultKind.PICTURES_MISSING] == ("all:4 (m9)",)
    assert found[DatasetFaultKind.PICTURE_TWICE] == ("all:1 (m0) = all:2 (m1)",)
    assert found[DatasetFaultKind.LABELS_CONFLICT] == ("all:1 (m0) = all:2 (m1)",)
    assert report.splits[0].pictures == 3


def test_cluster_worker_gets_pictures_from_shards(tmp_path):
    write_shard(tmp_path / "a.tar", sample_of("m0", picture=b"picture"))
    driver = Driver(
        {"m0": str(tmp_path / "a.tar" / "0" / "m0.jpg"), "m1": str(tmp_path / "a.tar" / "9" / "m1.jpg")}, None
    )
    assert asyncio.run(driver.picture("m0")) == b"picture"
    assert asyncio.run(driver.picture("m1")) is None


def in_shards(source, place, per_shard):
    """The splits of a synthetic data set as shards, with a card; returns the card's path."""
    for split in ("train", "val", "test"):
        rows = [json.loads(line) for line in (source / f"{split}.jsonl").read_text().splitlines()]
        for start in range(0, len(rows), per_shard):
            members = []
            for row in rows[start : start + per_shard]:
                picture = next(source.rglob(row["image"]))
                record = {"name": row["id"], "text": row["text"], "label": row["labels"][0]}
                members += [(f"{row['id']}{picture.suffix}", picture.read_bytes())]
                members += [(f"{row['id']}.json", json.dumps(record).encode())]
            write_shard(place / f"{split}-{start // per_shard:03}.tar", members)
    card = place / "shards.toml"
    card.write_text(
        "\n".join(
            [
                'format = 1\nid = "in-shards"\ntitle = "in shards"\nlayout = { kind = "tar" }',
                'fields = { id = "name", text = "text", picture = "@picture" }',
                *(
                    f'[[splits]]\nname = "{name}"\nrole = "{role}"\nfiles = ["{name}-*.tar"]'
                    for name, role in (("train", "train"), ("val", "validation"), ("test", "test"))
                ),
                '[[tasks]]\nid = "harm"\nkind = "ordinal"',
                'labels = ["not harmful", "somewhat harmful", "very harmful"]\nof = "label"',
                'court = { harmful = ["somewhat harmful", "very harmful"], benign = ["not harmful"] }',
                "protocols = { merged = {}, extreme = {} }",
            ]
        )
        + "\n"
    )
    return card


@pytest.mark.slow
def test_run_on_shards_gives_the_same_predictions_as_on_files(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    make(tmp_path / "files", Layout.HARMEME, train=24, val=4, test=8)
    card = in_shards(tmp_path / "files", tmp_path / "shards", 5)
    predictions = {}
    for name, dataset in (("files", "synthetic-harmeme"), ("shards", str(card))):
        words = ["run", "--dataset", dataset, "--data", tmp_path / name, "--out", tmp_path / f"run-{name}"]
        outcome = CliRunner().invoke(cli, [*map(str, words), "--procedure", "summary", "--limit", "6"])
        assert outcome.exit_code == 0, outcome.output
        found = RunFolder(tmp_path / f"run-{name}").predictions()
        predictions[name] = {
            prediction.meme: prediction.model_copy(update={"trial": "", "cost": None}) for prediction in found
        }
    assert len(predictions["files"]) == 6
    assert predictions["files"] == predictions["shards"]
    assert all(".tar/" in meme.image for meme in RunFolder(tmp_path / "run-shards").memes())


def test_drafted_card_for_shards_can_be_read(tmp_path):
    write_shard(
        tmp_path / "train-0.tar", [member for n in range(8) for member in sample_of(f"m{n}", n % 2, f"a pond {n}")]
    )
    (tmp_path / "card.toml").write_text(draft_card(tmp_path, "mine"))
    found = read_by_card(read_card(tmp_path / "card.toml"), tmp_path, "train")
    assert [meme.gold["label"] for meme in found.memes] == [("0",), ("1",)] * 4
    assert [read_picture(found.picture_of(meme)) for meme in found.memes] == [b"picture"] * 8


def test_commands_report_a_faulty_shard_in_one_line(tmp_path):
    samples = [member for n in range(2) for member in sample_of(f"m{n}", n, f"a pond {n}")]
    write_shard(tmp_path / "data" / "train-0.tar", [*samples, ("../m2.jpg", b"x")])
    (tmp_path / "card.toml").write_text(draft_card(tmp_path / "data", "mine"))
    words = ["datasets", "check", str(tmp_path / "data"), "--dataset", str(tmp_path / "card.toml")]
    outcome = CliRunner().invoke(cli, words)
    assert outcome.exit_code == 1
    assert "its member ../m2.jpg has a name that leads out of the archive" in outcome.output
    assert "2 read + 0 excluded + 1 refused = 3 rows" in outcome.output
    damage(tmp_path / "data" / "train-0.tar", 3 * 1024, b"\xff" * 100)
    outcome = CliRunner().invoke(cli, words)
    assert outcome.exit_code == 2
    assert "train-0.tar, at or after its member m0.txt" in outcome.output
    assert "Traceback" not in outcome.output
