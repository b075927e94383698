"""Corpora of fact documents: reading files, splitting into passages, searching, and detecting alterations."""

import asyncio
import itertools
import json
import os
import random
import zlib

import pytest
from fpdf import FPDF

from court.backends.sandbox.process import Guard
from court.errors import BadLibrary, BadRequest, Overrun, Unavailable
from retrieval.facts import corpus as corpora
from retrieval.facts.corpus import open_corpus
from retrieval.facts.documents import OVERLAP, PASSAGE, FactDocument, is_date, passages_of, tidy, trust_of
from retrieval.facts.extraction import TextExtractor
from retrieval.facts.reading import Origin, read_documents, read_trust
from retrieval.facts.source import CorpusEvidence, snippet_of
from retrieval.facts.starter import STARTER_FACTS
from retrieval.facts.worker import html_text
from retrieval.facts.writer import write_corpus
from retrieval.library.storage import CURRENT, GENERATIONS
from tests.support.encoders import WordEncoder

PIECES = ("a", "bc ", "d. ", "\n\n", "\n", "word ", "é" * 30 + " ", "y" * 1500)


def a_document(id_, text, **fields):
    return FactDocument(id=id_, text=text, **fields)


def build_corpus(folder, *documents, encoder=None, **options):
    write_corpus(folder, documents, name="test", encoder=encoder, **options)
    return open_corpus(folder, encoder)


def read(files, **options):
    async def run():
        extractor = TextExtractor()
        try:
            return await read_documents(files, extractor, **options)
        finally:
            await extractor.aclose()

    return asyncio.run(run())


def pdf_of(*pages, title="", password=None):
    pdf = FPDF()
    pdf.set_font("Helvetica")
    pdf.set_title(title)
    if password:
        pdf.set_encryption(owner_password="owner", user_password=password)
    for text in pages:
        pdf.add_page()
        pdf.multi_cell(0, 10, text)
    return bytes(pdf.output())


@pytest.mark.parametrize("seed", range(40))
def test_passages_cover_the_whole_text_and_are_short_with_little_overlap(seed):
    drawn = random.Random(seed)
    text = "".join(drawn.choices(PIECES, weights=(9, 9, 9, 2, 3, 9, 5, 1), k=drawn.randint(1, 500)))
    passages = list(passages_of(text))
    covered = {place for one in passages for place in range(one.start, one.end)}
    assert all(place in covered for place, character in enumerate(text) if not character.isspace())
    assert all(0 < one.end - one.start <= PASSAGE for one in passages)
    for one, following in itertools.pairwise(passages):
        assert one.start < following.start and one.end < following.end and one.end - following.start <= OVERLAP


def test_passages_end_at_paragraphs_before_sentences_and_words():
    paragraph = "One sentence of some length stands here. " * 15  # 615 characters
    first, second, *_ = passages_of(f"{paragraph}\n\n{paragraph}\n\n{paragraph}")
    assert first.end == len(paragraph.rstrip())
    assert second.start < first.end + 3
    (start, end) = next((one.start, one.end) for one in passages_of("Short words only. " * 200))
    assert ("Short words only. " * 200)[start:end].endswith("only.")


def test_corpus_files_are_read_with_their_own_metadata(tmp_path):
    (tmp_path / "boil.txt").write_text("Water boils at 100 degrees.")
    (tmp_path / "measles.md").write_text("# Measles\r\n\r\nA virus causes it.")
    (tmp_path / "wash.html").write_text(
        "<html><head><title>Hand washing</title><meta property='article:modified_time' content='2024-05-06T10:00Z'>"
        "<link rel='canonical' href='https://www.example.org/wash'><style>p {}</style></head><body><nav>Menu</nav>"
        "<p>Soap &amp; water.<p>Twenty<br>seconds.<script>alert(1)</script></body></html>"
    )
    (tmp_path / "guide.pdf").write_bytes(pdf_of("Page one says this.", "Page two says that.", title="A guide"))
    (tmp_path / "facts.jsonl").write_text(
        json.dumps({"id": "f1", "text": "Salt is salty.", "url": "https://who.int/salt", "date": "2023-02"})
        + "\n\n"
        + json.dumps({"id": "f2", "text": "Sugar is sweet.", "source": "A cook", "title": "Sugar", "url": None})
        + "\n"
    )
    found = read(sorted(tmp_path.iterdir()), origin=Origin(date="2020"))
    assert not found.problems
    by_id = {one.id: one for one in found.good}
    assert list(by_id) == ["boil.txt", "f1", "f2", "guide.pdf", "measles.md", "wash.html"]
    assert (by_id["boil.txt"].title, by_id["boil.txt"].source, by_id["boil.txt"].date) == ("boil", "boil.txt", "2020")
    assert by_id["measles.md"].title == "Measles"
    wash = by_id["wash.html"]
    assert (wash.title, wash.date, wash.source) == ("Hand washing", "2024-05-06", "example.org")
    assert wash.text == "Soap & water.\n\nTwenty\nseconds."
    assert by_id["guide.pdf"].title == "A guide"
    assert by_id["guide.pdf"].text == "Page one says this.\n\nPage two says that."
    assert (by_id["f1"].source, by_id["f1"].date, by_id["f2"].source) == ("who.int", "2023-02", "A cook")


def test_unreadable_files_and_lines_are_each_reported(tmp_path):
    lines = (
        '{"id": "a", "text": "good"}',
        "{broken",
        '{"id": "b"}',
        '{"id": "c", "text": "  "}',
        '{"id": "d", "text": "x", "date": "2020-13-01"}',
        '{"id": "e", "text": "x", "colour": "red"}',
        '{"id": "a", "text": "again"}',
        '{"id": 7, "text": "x"}',
        "[1]",
        '{"id": "f", "text": "x", "date": "2023-02-29"}',
    )
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "latin.html").write_bytes("<p>caf\xe9".encode("latin-1"))
    (tmp_path / "empty.html").write_text("<script>only()</script>")
    (tmp_path / "fake.pdf").write_bytes(b"%PDF-1.7\nnothing of the kind")
    (tmp_path / "locked.pdf").write_bytes(pdf_of("Secret.", password="pass"))
    (tmp_path / "scan.pdf").write_bytes(pdf_of(""))
    (tmp_path / "table.xlsx").write_bytes(b"PK")
    files = [*sorted(tmp_path.iterdir()), tmp_path / "gone.txt", tmp_path]
    found = read(files)
    assert [one.id for one in found.good] == ["a"]
    reasons = {(one.source, one.line): one.reason for one in found.problems}
    assert {line for name, line in reasons if name == "some.jsonl"} == {2, 3, 4, 5, 6, 7, 8, 9, 10}
    for line, words in {3: "no text", 4: "empty", 5: "YYYY", 6: "'colour'", 7: "taken", 8: "its id is no text"}.items():
        assert words in reasons["some.jsonl", line]
    assert "of the calendar" in reasons["some.jsonl", 10]
    for name, words in {
        "latin.txt": "not UTF-8",
        "latin.html": "another encoding",
        "empty.html": "no text",
        "fake.pdf": "damaged",
        "locked.pdf": "encrypted",
        "scan.pdf": "OCR",
        "table.xlsx": ".xlsx",
        "gone.txt": "No such file",
        tmp_path.name: "folder",
    }.items():
        assert words in reasons[name, 0]
    assert len(found.problems) == 18


def test_date_is_a_year_a_month_or_a_day():
    assert all(map(is_date, ["", "2024", "2024-02", "2024-02-29"]))
    assert not any(map(is_date, ["2023-02-29", "2024-04-31", "0000", "2024-1", "20240101", "2024\n", "٢٠٢٤"]))


def test_page_date_is_its_first_valid_one():
    page = "<meta name='article:modified_time' content='2024-02-30'><meta name='date' content='2024-02-28T10:00Z'><p>x"
    assert html_text(page.encode())["date"] == "2024-02-28"


def test_page_is_decoded_by_its_declared_encoding():
    page = "<meta charset='iso-8859-1'><p>caf\xe9".encode("latin-1")
    assert html_text(page)["text"] == "café"
    assert html_text("<p>café".encode("utf-16"))["text"] == "café"
    with pytest.raises(LookupError):
        html_text(b"<meta charset='klingon'><p>x")
    assert html_text(b"<p>caf\xe9", strict=False)["text"] == "caf\ufffd"


def bomb_of_streams():
    """Returns a PDF whose single page expands from kilobytes to a gigabyte."""
    squeezed = zlib.compressobj(9)
    body = b"".join(squeezed.compress(b"(a) Tj " * 2**17) for _ in range(1100)) + squeezed.flush()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(body), body),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
    return out + end % (table, len(out))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("pdf", bomb_of_streams),
        ("pdf", lambda: b"%PDF-1.4\n" + b"1 0 obj\n<<" * 200_000),
        ("html", lambda: b"<div>" * 2_000_000 + b"x" * 6_000_000),
        ("html", lambda: b"<!" * 4_000_000),
        ("html", lambda: b"<a " + b"b=" * 4_000_000),
    ],
)
async def test_hostile_files_are_refused_and_the_next_file_is_read(kind, data):
    guard = Guard(cpu_s=2.0, wall_s=30.0, memory_bytes=1024**3, max_reply_bytes=32 * 1024**2)
    extractor = TextExtractor(guard=guard)
    try:
        with pytest.raises(BadRequest, match="can't be read"):
            await extractor.extract(data(), kind)
        assert (await extractor.extract(b"<p>after", "html")).text == "after"
    finally:
        await extractor.aclose()


def test_oversized_files_are_refused_before_they_are_read(tmp_path):
    with (tmp_path / "huge.html").open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    (problem,) = read([tmp_path / "huge.html"]).problems
    assert "more than 64 MB" in problem.reason


def test_named_pipes_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.jsonl")
    found = read([tmp_path / "pipe.txt", tmp_path / "pipe.jsonl"])
    assert not found.good and all("no regular file" in problem.reason for problem in found.problems)
    assert len(found.problems) == 2


def test_search_combines_words_and_meaning_and_prefers_trusted_sources(tmp_path):
    encoder = WordEncoder()
    found = build_corpus(
        tmp_path / "facts",
        a_document("m", "Measles is caused by a virus", source="blog.example"),
        a_document("w", "Measles spreads through the air", url="https://www.who.int/measles"),
        a_document("t", "Tetanus lives in soil", source="who.int"),
        encoder=encoder,
        trust={"who.int": 3},
    )
    hits = found.search("measles virus", 5)
    assert [hit.id for hit in hits[:2]] == ["w#1", "m#1"]
    assert [hit.trust for hit in hits[:2]] == [3, 0]
    assert max(hits, key=lambda hit: hit.score).id == "m#1"
    assert [hit.id for hit in found.search("measles virus", 1)] == ["m#1"]
    # Both the encoder and BM25 ignore case and Unicode form. A query that neither knows finds no passage.
    assert found.search("bananas", 5) == []
    assert found.search("the", 5) == [] or all(hit.score > 0 for hit in found.search("the", 5))


def test_score_is_the_sum_of_reciprocal_ranks_of_both_rankings(tmp_path):
    encoder = WordEncoder()
    found = build_corpus(
        tmp_path / "facts", a_document("a", "measles virus"), a_document("b", "tetanus soil"), encoder=encoder
    )
    (best, *_) = found.search("measles virus", 2)
    assert best.id == "a#1" and best.score == pytest.approx(2 / 61)
    words = build_corpus(tmp_path / "words", a_document("a", "measles virus"), a_document("b", "tetanus soil"))
    (only,) = words.search("measles", 2)
    assert only.score == pytest.approx(1 / 61)


def test_passage_is_read_with_its_neighbours_and_only_the_best_of_them_is_a_hit(tmp_path):
    text = "\n\n".join(f"Paragraph {number} {'filler ' * 120}" for number in range(5))
    found = build_corpus(tmp_path / "facts", a_document("long", text), a_document("other", "short"))
    hits = found.search("paragraph filler", 10)
    numbers = [int(hit.id.rpartition("#")[2]) for hit in hits]
    assert len(numbers) > 1 and all(abs(a - b) > 1 for a in numbers for b in numbers if a != b)
    _, third = found.read("long#3")
    assert "Paragraph 1" in third and "Paragraph 3" in third and "Paragraph 4" not in third
    assert third in text
    with pytest.raises(KeyError):
        found.read("long#99")


def test_same_documents_make_the_same_corpus_byte_for_byte(tmp_path):
    documents = [a_document(str(number), f"fact {number} about w{number % 7}") for number in range(50)]
    digests = {build_corpus(tmp_path / str(place), *documents, encoder=WordEncoder()).digest for place in range(2)}
    assert len(digests) == 1


@pytest.mark.parametrize("name", [corpora.DOCUMENTS, corpora.PASSAGES, corpora.VECTORS, corpora.MANIFEST])
def test_altered_corpus_is_refused(tmp_path, name):
    build_corpus(tmp_path / "facts", a_document("a", "one fact"), encoder=WordEncoder())
    (generation,) = (tmp_path / "facts" / GENERATIONS).iterdir()
    raw = bytearray((generation / name).read_bytes())
    raw[-3] ^= 1
    (generation / name).write_bytes(bytes(raw))
    with pytest.raises(BadLibrary) as error:
        open_corpus(tmp_path / "facts", WordEncoder())
    assert error.value.reason == "CORPUS_DAMAGED"


def test_corpus_is_searched_only_with_the_encoder_that_built_it(tmp_path):
    build_corpus(tmp_path / "facts", a_document("a", "one fact"), encoder=WordEncoder())
    for other in (None, WordEncoder("others")):
        with pytest.raises(BadLibrary) as error:
            open_corpus(tmp_path / "facts", other)
        assert error.value.reason == "CORPUS_FOREIGN"
    assert open_corpus(tmp_path / "facts", None, search=False).manifest.documents == 1


def test_folders_with_other_content_are_not_overwritten(tmp_path):
    facts = tmp_path / "facts"
    with pytest.raises(BadLibrary, match="no corpus"):
        open_corpus(facts)
    build_corpus(facts, a_document("a", "one fact"))
    with pytest.raises(BadRequest, match="already"):
        build_corpus(facts, a_document("a", "two facts"))
    assert build_corpus(facts, a_document("a", "two facts"), replace=True).documents[0].text == "two facts"
    (facts / "letters.txt").write_text("mine")
    with pytest.raises(BadRequest, match="other things"):
        build_corpus(facts, a_document("a", "three"), replace=True)
    with pytest.raises(BadRequest, match="no document"):
        build_corpus(tmp_path / "none")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / CURRENT).write_text("000001 sha256:" + "0" * 64 + "\n")
    with pytest.raises(BadLibrary):
        build_corpus(tmp_path / "library", a_document("a", "x"), replace=True)


def test_corpus_serves_a_trial_as_an_evidence_source(tmp_path):
    facts = build_corpus(
        tmp_path / "facts", a_document("a", "Measles is caused by a virus.", title="Measles", date="2024")
    )
    source = CorpusEvidence(facts)

    async def run():
        (hit,) = await source.search("measles", most=3, within_s=60)
        return hit, await source.read(hit.id, within_s=60)

    hit, found = asyncio.run(run())
    assert (hit.title, hit.date, hit.snippet) == ("Measles", "2024", "Measles is caused by a virus.")
    assert (found.id, found.text) == (hit.id, "Measles is caused by a virus.")
    assert len(found.sha256) == 64 and facts.digest in source.identity
    with pytest.raises(Unavailable):
        asyncio.run(source.read("b#1", within_s=60))


def test_slow_search_times_out(tmp_path, monkeypatch):
    import time

    facts = build_corpus(tmp_path / "facts", a_document("a", "x y"))
    monkeypatch.setattr(facts, "search", lambda query, most: time.sleep(0.5))
    with pytest.raises(Overrun):
        asyncio.run(CorpusEvidence(facts).search("x", most=1, within_s=0.05))


def test_trust_is_looked_up_by_source_then_host_then_parent_domains():
    trust = {"who.int": 3, "A cook": 1, "int": 9}
    assert trust_of("A cook", "https://who.int/x", trust) == 1
    assert trust_of("unknown", "https://www.data.who.int/x", trust) == 3
    assert trust_of("who.int", "", trust) == 3
    assert trust_of("unknown", "https://evilwho.int", trust) == 9
    assert trust_of("", "http://[broken", {}) == 0


@pytest.mark.parametrize(
    "content", ["[trust]\na = -1", "[trust]\na = true", "[trust]\na = 'x'", "trust = 3", "[other]", "no toml at all"]
)
def test_invalid_trust_file_is_refused(tmp_path, content):
    (tmp_path / "trust.toml").write_text(content)
    with pytest.raises(BadRequest) as error:
        read_trust(tmp_path / "trust.toml")
    assert error.value.reason == "TRUST_UNREADABLE"


def test_texts_are_normalised_and_snippets_cut_at_a_word():
    assert tidy("a\r\nb\x00c\ud800\fd") == "a\nb c\ufffd\n\nd"
    assert snippet_of("word " * 100).endswith("word …") and len(snippet_of("x" * 500)) <= 302


def test_starter_corpus_is_a_dated_demonstration_that_names_its_sources(tmp_path):
    found = read([STARTER_FACTS])
    assert not found.problems
    assert 200 <= len(found.good) <= 300
    assert all(
        one.date and one.source.startswith("Demonstration, after ") and len(one.text) < 300 for one in found.good
    )
    corpus = build_corpus(tmp_path / "starter", *found.good, demonstration=True)
    assert "demonstration" in CorpusEvidence(corpus).identity
    for query, words in {
        "vaccines cause autism": "do not cause autism",
        "5G spreads the corona virus": "5G mobile networks do not spread COVID-19",
        "antibiotics cure the flu": "viruses such as those of colds and flu",
        "the flu shot gives you flu": "can't give anybody the flu",
    }.items():
        assert any(words in hit.text for hit in corpus.search(query, 4))
