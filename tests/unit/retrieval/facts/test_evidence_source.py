"""Evidence sources named by settings, and a claim that the demonstration corpus refutes."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from pydantic import ValidationError

from court.errors import BadLibrary, BadRequest
from court.verdict import ClaimLabel
from retrieval.facts.corpus import open_corpus
from retrieval.facts.documents import FactDocument
from retrieval.facts.extraction import TextExtractor
from retrieval.facts.reading import read_documents
from retrieval.facts.source import CorpusEvidence
from retrieval.facts.starter import STARTER_FACTS
from retrieval.facts.writer import write_corpus
from serving.settings import Settings
from serving.wiring import open_evidence
from tests.support.encoders import WordEncoder
from tests.support.evidence import WEIGHED, Expert, try_with_expert
from tests.support.fakes import a_meme


def identity_of_source(encoder=None, **expert):
    async def go():
        async with AsyncExitStack() as stack:
            source = await open_evidence(Settings(expert=expert), stack, encoder)
            return source and source.identity

    return asyncio.run(go())


def test_corpus_is_opened_with_the_court_s_encoder_if_that_built_it(tmp_path):
    write_corpus(tmp_path / "facts", [FactDocument(id="a", text="one fact")], name="mine", encoder=WordEncoder())
    assert identity_of_source(WordEncoder(), corpus=tmp_path / "facts").startswith("corpus mine sha256:")
    write_corpus(tmp_path / "words", [FactDocument(id="a", text="one fact")], name="words")
    assert identity_of_source(corpus=tmp_path / "words").startswith("corpus words")
    with pytest.raises(BadLibrary):
        identity_of_source(corpus=tmp_path / "none")


def test_search_endpoint_is_opened_with_its_key(monkeypatch):
    assert identity_of_source() is None
    url = "https://search.example/s"
    assert identity_of_source(url=url) == f"search searxng {url}, snippets"
    assert identity_of_source(url=url, shape="serper", fetch=True) == f"search serper {url}, pages"
    monkeypatch.delenv("A_KEY", raising=False)
    with pytest.raises(BadRequest) as error:
        identity_of_source(url=url, key_env="A_KEY")
    assert error.value.reason == "KEY_MISSING"
    monkeypatch.setenv("A_KEY", "sesame")
    assert "sesame" not in identity_of_source(url=url, key_env="A_KEY")
    assert identity_of_source(url="http://127.0.0.1:8888/s", key_env="A_KEY")


@pytest.mark.parametrize(
    "expert",
    [
        {"corpus": "facts", "url": "https://search.example/"},
        {"fetch": True},
        {"key_env": "A_KEY"},
        {"url": "ftp://search.example/"},
        {"url": "https://user:secret@search.example/"},
        {"url": "https://search.example/?key=secret"},
        {"url": "https://search.example:x/"},
        {"url": "https://search.example:0/"},
        {"url": "search.example"},
        {"url": "https://search.example/", "key_env": "NOT A NAME"},
        {"url": "http://search.example/", "key_env": "A_KEY"},
        {"url": "https://search.example/", "shape": "google"},
        {"url": "https://search.example/", "shape": "json", "paths": {"link": "x"}},
    ],
)
def test_settings_without_a_usable_source_are_refused(expert):
    with pytest.raises(ValidationError):
        Settings(expert=expert)


def test_demonstration_corpus_refutes_a_claim_and_names_itself_as_such(tmp_path):
    async def documents():
        extractor = TextExtractor()
        try:
            return (await read_documents([STARTER_FACTS], extractor)).good
        finally:
            await extractor.aclose()

    write_corpus(tmp_path / "facts", asyncio.run(documents()), name="starter", demonstration=True)
    words, quote = "Vaccines cause autism", "Vaccines do not cause autism."
    expert = Expert(
        claims={"statements": [{"words": words, "claim": f"{words}.", "kind": "fact"}]},
        queries={"queries": ["vaccines cause autism"]},
        weigh={**WEIGHED, "quotes": [quote]},
        classify={"quotes": [{"document": 1, "quote": quote}], "label": "refuted"},
    )
    source = CorpusEvidence(open_corpus(tmp_path / "facts"))
    record, *_ = try_with_expert(expert, source, meme=a_meme(f"{words}, my neighbour says"))
    (finding,) = record.verdict.claims
    assert finding.label is ClaimLabel.REFUTED and finding.checked
    (passage,) = finding.evidence
    assert passage.quote == quote and passage.source.startswith("Demonstration, after WHO")
    assert passage.date == "2026-11" and len(passage.sha256) == 64
