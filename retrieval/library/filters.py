"""Filter of the precedents that a search may find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from retrieval.library.manifest import LabelledMeme


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a precedent must all meet to be found. An empty tuple imposes none.

    Attributes:
        until: Exclusive latest time of addition to the library; None for no bound.
        verified: True if a person must have confirmed the label.

    A precedent with an unknown time of addition matches neither bound.
    """

    sources: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    verified: bool = False

    def __post_init__(self) -> None:
        if any(bound is not None and bound.tzinfo is None for bound in (self.since, self.until)):
            raise ValueError("a time without a time zone says nothing")

    @property
    def names(self) -> Sequence[tuple[str, ...]]:
        """Requested names of sources, splits, namespaces, languages and policies, in this order."""
        return self.sources, self.splits, self.namespaces, self.languages, self.policies

    def lets_through(self, meme: LabelledMeme) -> bool:
        """True if the filter admits this precedent."""
        named = (meme.source, meme.split, meme.namespace, meme.language, meme.policy)
        return (
            all(not wanted or name in wanted for wanted, name in zip(self.names, named, strict=True))
            and (self.since is None or (meme.added is not None and meme.added >= self.since))
            and (self.until is None or (meme.added is not None and meme.added < self.until))
            and (meme.verified or not self.verified)
        )


# A shared instance, as each search compares with it, and a new one would validate its times again.
EVERYTHING = Filter()
