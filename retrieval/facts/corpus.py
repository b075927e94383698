"""A corpus of documents on disk, searched by words and, if it was built with an encoder, by meaning.

::

    CURRENT, generations/     as in a library of precedents (retrieval.library.storage)
    manifest.json             counts, encoder, trust of sources, SHA-256 and size of each other file
    documents.jsonl           one document per line
    passages.npy              int64 (passages, 3): document, start and end of each
    vectors.npy               float32 (passages, text_dim + 1); only with an encoder
    …index.npy, …index.json   BM25 index
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from court.digests import sha256_of
from court.errors import BadLibrary
from court.values import Value
from retrieval.embed.encoder import UNIT_TOLERANCE, Encoder, EncoderIdentity
from retrieval.facts import lexical
from retrieval.facts.documents import FactDocument, Passage, trust_of
from retrieval.facts.lexical import LexicalIndex
from retrieval.index.exact import FusedIndex
from retrieval.library import storage
from retrieval.library.manifest import FileEntry

FORMAT = 1
MANIFEST, DOCUMENTS, PASSAGES, VECTORS = "manifest.json", "documents.jsonl", "passages.npy", "vectors.npy"
_RANKED = 100
"""Passages of each ranking that are fused."""
_RRF = 60
"""Of reciprocal rank fusion (Cormack, Clarke & Büttcher 2009): how little the first ranks stand out."""


class CorpusManifest(Value):
    """Manifest of a corpus. It contains no timestamp, so the same documents give the same digest."""

    format: int
    name: str = Field(min_length=1, max_length=200)
    documents: int = Field(ge=1)
    passages: int = Field(ge=1)
    encoder: EncoderIdentity | None = None
    """What turned its passages into vectors; None where it is searched by words alone."""
    trust: dict[str, int] = Field(default_factory=dict)
    """How far each source or host is trusted: the higher, the earlier in results of the same search."""
    demonstration: bool = False
    """True for the starter corpus, which no real decision may rest on."""
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A passage that a search found, as ``DOCUMENT#NUMBER``; scores compare within one search."""

    id: str
    document: FactDocument
    text: str
    trust: int
    score: float


class FactCorpus:
    """An open corpus, whose digest is that of its manifest; searches are thread-safe."""

    def __init__(
        self,
        manifest: CorpusManifest,
        digest: str,
        *,
        documents: Sequence[FactDocument],
        passages: Sequence[Passage],
        words: LexicalIndex,
        vectors: FusedIndex | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.manifest = manifest
        self.digest = digest
        self.documents = documents
        self._passages = passages
        self._words = words
        self._vectors = vectors
        self._encoder = encoder
        # Passages of a document are contiguous and in order (_check_content), so the number of a passage is its offset
        # from the document's first.
        first: dict[int, int] = {}
        for place, passage in enumerate(passages):
            first.setdefault(passage.document, place)
        self._numbers = [place - first[passage.document] + 1 for place, passage in enumerate(passages)]
        self._places = {self._id(place): place for place in range(len(passages))}

    def search(self, query: str, most: int) -> list[PassageHit]:
        """The best passages for a query by both rankings together, then sorted by trust in their source.

        Raises:
            Unavailable: The encoder is not available now.
        """
        # Of adjacent passages only the better is returned: :meth:`read` gives both.
        scores: dict[int, float] = {}
        for ranking in (self._words.search(query, _RANKED), self._by_meaning(query)):
            for rank, place in enumerate(ranking, 1):
                scores[place] = scores.get(place, 0.0) + 1 / (_RRF + rank)
        found: list[int] = []
        # Ties are broken by index, so that the same query always gets the same results.
        for place in sorted(scores, key=lambda place: (-scores[place], place)):
            # Limited before sorting by trust: trust only orders the results, and never brings in one that fits the
            # query less.
            if len(found) == most:
                break
            if not any(abs(place - other) == 1 and self._same_document(place, other) for other in found):
                found.append(place)
        hits = [self._hit(place, scores[place]) for place in found]
        # Sorting is stable: equally trusted passages stay in the order of their scores.
        return sorted(hits, key=lambda hit: -hit.trust)

    def read(self, id_: str) -> tuple[FactDocument, str]:
        """The document of a passage, and its text from the preceding passage to the following one.

        Raises:
            KeyError: There is no such passage.
        """
        place = self._places[id_]
        start, end = self._passages[place].start, self._passages[place].end
        if place and self._same_document(place, place - 1):
            start = self._passages[place - 1].start
        if place + 1 < len(self._passages) and self._same_document(place, place + 1):
            end = self._passages[place + 1].end
        document = self.documents[self._passages[place].document]
        return document, document.text[start:end]

    def _by_meaning(self, query: str) -> list[int]:
        if self._vectors is None or self._encoder is None:
            return []
        vector = self._encoder.embed_texts([query]).vectors[0]
        if not vector.any():  # the encoder can't read it
            return []
        hits = self._vectors.search(vector, None, alpha=1.0, k=_RANKED)
        # Every passage has some similarity to any query; below the encoder's minimum it means nothing.
        least = self._encoder.floors.text
        # Always above 0: a row of zeros is a passage that the encoder can't read.
        return [
            int(row)
            for row, score in zip(hits.rows, hits.scores, strict=True)
            if score >= (least if least is not None else 0.0) and score > 0
        ]

    def _same_document(self, place: int, other: int) -> bool:
        return self._passages[place].document == self._passages[other].document

    def _id(self, place: int) -> str:
        return f"{self.documents[self._passages[place].document].id}#{self._numbers[place]}"

    def _hit(self, place: int, score: float) -> PassageHit:
        passage = self._passages[place]
        document = self.documents[passage.document]
        trust = trust_of(document.source, document.url, self.manifest.trust)
        return PassageHit(
            id=self._id(place),
            document=document,
            text=document.text[passage.start : passage.end],
            trust=trust,
            score=score,
        )


def read_corpus_manifest(root: Path) -> CorpusManifest:
    """Reads and checks the manifest of a corpus. Raises BadLibrary."""
    return _manifest_in(root)[0]


def open_corpus(root: Path, encoder: Encoder | None = None, *, search: bool = True) -> FactCorpus:
    """Opens a corpus after checking every byte of it.

    Raises:
        BadLibrary: The corpus is missing, damaged, or of another encoder or a later version.
    """
    manifest, folder, digest = _manifest_in(root)
    if search and manifest.encoder != (None if encoder is None else encoder.identity):
        raise BadLibrary(
            f"The corpus was built with {f'the encoder {manifest.encoder}' if manifest.encoder else 'no encoder'}, and "
            f"is to be searched with {encoder.identity if encoder else 'none'}: their similarities can't be compared. "
            "Build it again with `memecourt facts build --replace`.",
            reason="CORPUS_FOREIGN",
        )
    for name, entry in manifest.files.items():
        try:
            # The size first, which avoids reading a truncated file.
            if (folder / name).stat().st_size != entry.size or sha256_of(folder / name) != entry.sha256:
                raise _damaged(f"{name} is not what it was when written")
        except OSError:
            raise _damaged(f"{name} can't be read") from None
    try:
        # The parsers only see files that match the digests of the manifest, which matches that of CURRENT.
        # Split as bytes: as text, lines would also end at U+2028 and similar characters, which JSON may contain.
        lines = (folder / DOCUMENTS).read_bytes().splitlines()
        documents = [FactDocument.model_validate_json(line) for line in lines]
        passages = [Passage(*row) for row in npy.open_memmap(folder / PASSAGES, mode="r").tolist()]
        words = LexicalIndex.load(folder)
        rows = None if manifest.encoder is None else np.array(npy.open_memmap(folder / VECTORS, mode="r"))
        _check_content(manifest, documents, passages, rows)
        index = None if rows is None or manifest.encoder is None else FusedIndex(rows, manifest.encoder.text_dim)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged("its files contradict each other") from error
    return FactCorpus(
        manifest, digest, documents=documents, passages=passages, words=words, vectors=index, encoder=encoder
    )


def _manifest_in(root: Path) -> tuple[CorpusManifest, Path, str]:
    """The manifest of a corpus, the folder of its files, and the digest of the manifest. Raises BadLibrary."""
    try:
        pointer = storage.read_pointer(root)
    except BadLibrary as error:
        # The storage code is shared with libraries of precedents, and its messages are about those.
        if error.reason == "LIBRARY_MISSING":
            raise BadLibrary(
                "There is no corpus at the given place. Build one with `memecourt facts build`.",
                reason="CORPUS_MISSING",
            ) from None
        raise _damaged(f"{storage.CURRENT} does not name a generation") from None
    folder = root / storage.GENERATIONS / pointer.generation
    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError:
        raise _damaged(f"{MANIFEST} can't be read") from None
    if hashlib.sha256(raw).hexdigest() != pointer.manifest_sha256:
        raise _damaged(f"{MANIFEST} is not what it was when written")
    try:
        manifest = CorpusManifest.model_validate_json(raw)
    except ValidationError:
        raise BadLibrary(
            "What lies there is no corpus, or one that a later version of MemeCourt built. Build it with this version.",
            reason="CORPUS_FOREIGN",
        ) from None
    wanted = {DOCUMENTS, PASSAGES, *lexical.FILES, *([VECTORS] if manifest.encoder else [])}
    # These names become paths: a manifest must not open any other file.
    if manifest.format != FORMAT or manifest.files.keys() != wanted:
        raise BadLibrary(
            f"The corpus has format {manifest.format}; this version of MemeCourt reads format {FORMAT}. "
            "Build it again.",
            reason="CORPUS_FOREIGN",
        )
    return manifest, folder, pointer.manifest_sha256


def _check_content(
    manifest: CorpusManifest,
    documents: Sequence[FactDocument],
    passages: Sequence[Passage],
    rows: NDArray[np.float32] | None,
) -> None:
    """Raises ValueError if the files of a corpus contradict each other."""
    if (len(documents), len(passages)) != (manifest.documents, manifest.passages):
        raise ValueError("other counts than the manifest's")
    if len({one.id for one in documents}) < len(documents):
        raise ValueError("an id is there twice")
    before = 0
    for one in passages:
        # Sorted by document, which the numbers of passages and the check for adjacent ones rely on.
        if not before <= one.document < len(documents) or not 0 <= one.start < one.end:
            raise ValueError("a passage of nothing")
        if one.end > len(documents[one.document].text):
            raise ValueError("a passage beyond its document")
        before = one.document
    if rows is not None and manifest.encoder is not None:
        if rows.shape != (len(passages), manifest.encoder.text_dim + 1):
            raise ValueError("vectors of another shape")
        # A row of zeros is a passage that the encoder can't read: it is only found by its words.
        lengths = np.linalg.norm(rows, axis=1)
        if not np.all((np.abs(lengths - 1) <= UNIT_TOLERANCE) | (lengths == 0)):
            raise ValueError("a vector that is no unit")


def _damaged(what: str) -> BadLibrary:
    return BadLibrary(
        f"The corpus is damaged: {what}. Nothing is searched in it. Restore it from a backup, or build it again from "
        "its files.",
        reason="CORPUS_DAMAGED",
    )
