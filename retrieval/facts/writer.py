"""Writes a corpus atomically."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from court.errors import BadRequest, Unavailable
from retrieval.embed.encoder import Encoder
from retrieval.facts import lexical
from retrieval.facts.corpus import DOCUMENTS, FORMAT, MANIFEST, PASSAGES, VECTORS, CorpusManifest, read_corpus_manifest
from retrieval.facts.documents import FactDocument, passages_of
from retrieval.facts.lexical import LexicalIndex
from retrieval.library import storage
from retrieval.library.manifest import FileEntry

_BATCH = 256


def write_corpus(
    root: Path,
    documents: Sequence[FactDocument],
    *,
    name: str,
    encoder: Encoder | None = None,
    trust: Mapping[str, int] | None = None,
    demonstration: bool = False,
    replace: bool = False,
) -> CorpusManifest:
    """Writes a corpus of documents with unique ids atomically; without an encoder it is searched by words alone.

    Raises:
        BadRequest: The directory has other content, or there are no documents.
        Unavailable: Another process is writing there.
        OSError: The disk is full or can't be written to.
    """
    if not documents:
        raise BadRequest("There is no document for the corpus. Name files that hold some.", reason="CORPUS_EMPTY")
    refuse_corpus_place(root, replace)
    passages = [passage for index, one in enumerate(documents) for passage in passages_of(one.text, index)]
    # Titles are searched too, as a passage from the middle may not mention its topic.
    texts = [
        f"{documents[one.document].title}\n{documents[one.document].text[one.start : one.end]}".strip()
        for one in passages
    ]
    # All slow work is done before the lock is taken, so that other writers only wait for the copying.
    words = LexicalIndex.build(texts)
    vectors = None if encoder is None else _embedded(texts, encoder)
    manifest: CorpusManifest | None = None

    def fill(folder: Path) -> None:
        nonlocal manifest
        written = {
            DOCUMENTS: storage.write_synced(
                folder / DOCUMENTS, (f"{one.model_dump_json()}\n".encode() for one in documents)
            ),
            PASSAGES: storage.write_synced(
                folder / PASSAGES,
                [_array(np.array([(one.document, one.start, one.end) for one in passages], dtype=np.int64))],
            ),
        }
        if vectors is not None:
            written[VECTORS] = storage.write_synced(folder / VECTORS, [_array(vectors)])
        words.save(folder)
        # bm25s writes these files itself, without syncing them.
        written |= {file: storage.synced(folder / file) for file in lexical.FILES}
        # Made last, as it holds the digests of all other files.
        manifest = CorpusManifest(
            format=FORMAT,
            name=name,
            documents=len(documents),
            passages=len(passages),
            encoder=None if encoder is None else encoder.identity,
            trust=dict(trust or {}),
            demonstration=demonstration,
            files={file: FileEntry(sha256=sha256, size=size) for file, (sha256, size) in sorted(written.items())},
        )
        storage.write_synced(folder / MANIFEST, [manifest.model_dump_json(indent=1).encode()])

    root.mkdir(parents=True, exist_ok=True)
    try:
        with storage.writing(root):
            pointer = storage.publish(root, fill, MANIFEST)
            # Under the same lock: another writer's new generation would look like an old one.
            storage.prune(root, pointer.generation, None)
    except Unavailable:
        raise Unavailable(
            "Somebody else is writing to this corpus. Wait until they are done.",
            reason="CORPUS_LOCKED",
            retry_after=5.0,
        ) from None
    assert manifest is not None
    return manifest


def refuse_corpus_place(root: Path, replace: bool) -> None:
    """Raises BadRequest or BadLibrary if the directory has other content, or a corpus that is not to be replaced."""
    if root.exists() and (not root.is_dir() or {path.name for path in root.iterdir()} - storage.OWN_NAMES):
        raise BadRequest(
            "The directory for the corpus holds other things. Name a new or empty one.", reason="CORPUS_PLACE"
        )
    if (root / storage.CURRENT).exists():
        if not replace:
            raise BadRequest(
                "There is a corpus already. Name another directory, or give --replace.", reason="CORPUS_EXISTS"
            )
        read_corpus_manifest(root)  # a library of precedents must not be replaced by a corpus


def _embedded(texts: Sequence[str], encoder: Encoder) -> NDArray[np.float32]:
    """Vectors of passages, shape (n, text_dim + 1): the index requires a second half, which is zero here."""
    rows = np.zeros((len(texts), encoder.identity.text_dim + 1), dtype=np.float32)
    for start in range(0, len(texts), _BATCH):
        rows[start : start + _BATCH, :-1] = encoder.embed_texts(texts[start : start + _BATCH]).vectors
    return rows


def _array(values: NDArray[np.generic]) -> bytes:
    out = io.BytesIO()
    npy.write_array(out, values, allow_pickle=False)
    return out.getvalue()
