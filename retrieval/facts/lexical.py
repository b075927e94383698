"""Search by words with BM25 (Robertson & Zaragoza 2009), computed by bm25s; the index is stored with the passages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from court.errors import NotLoaded
from retrieval.text import text_key

FILES = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "vocab.index.json", "params.index.json")
# The usual values, as in Lucene.
_K1, _B = 1.2, 0.75


class LexicalIndex:
    """Ranks passages by the words they share with a query."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, texts: Sequence[str]) -> LexicalIndex:
        """Indexes texts, at least one. Raises NotLoaded if bm25s is not installed."""
        bm25s = _library()
        words = [_words(text) for text in texts]
        # Numbered alphabetically: bm25s numbers words in set order, which differs each time, and the same documents
        # must give the same files. The empty word keeps a corpus without any word from failing.
        vocabulary = {
            word: number for number, word in enumerate(sorted({"", *(one for each in words for one in each)}))
        }
        index = bm25s.BM25(k1=_K1, b=_B)
        ids = [[vocabulary[word] for word in each or [""]] for each in words]
        index.index(bm25s.tokenization.Tokenized(ids=ids, vocab=vocabulary), show_progress=False)
        return cls(index)

    @classmethod
    def load(cls, folder: Path) -> LexicalIndex:
        """Opens an index. Raises OSError, ValueError or KeyError if its files are invalid, or NotLoaded."""
        bm25s = _library()
        # No pickles, which can run code: a corpus may come from an untrusted source (SC-1).
        return cls(bm25s.BM25.load(folder, allow_pickle=False, show_progress=False))

    def save(self, folder: Path) -> None:
        """Writes the files into a folder. Raises OSError."""
        self._index.save(folder, allow_pickle=False, show_progress=False)

    def search(self, query: str, most: int) -> list[int]:
        """Indexes of at most ``most`` texts that share a word with the query, best first, ties by index."""
        wanted = [word for word in _words(query) if word in self._index.vocab_dict]
        if not wanted:
            return []
        scores = np.asarray(self._index.get_scores(wanted))
        found = np.flatnonzero(scores > 0)
        best = found[np.lexsort((found, -scores[found]))][:most]
        return [int(place) for place in best]


def _library() -> Any:
    try:
        import bm25s  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise NotLoaded(
            "Corpora of facts need bm25s. Install it with `pip install 'memecourt[facts]'`.",
            reason="FACTS_NOT_INSTALLED",
        ) from None
    return bm25s


def _words(text: str) -> list[str]:
    (words,) = _library().tokenize([text_key(text)], stopwords="en", return_ids=False, show_progress=False)
    return list(words)
