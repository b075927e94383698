"""A meme of a data set that is to be judged."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.protocol import Level, Protocol, of_level


class _ItemModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JudgedMeme(_ItemModel):
    """A meme that is to be judged; one line of ``memes.jsonl``."""

    id: str = Field(min_length=1)
    split: str
    line: int = Field(ge=0)
    """Where it stands in its file, counted from 1."""
    image: str
    """Name of its picture's file, below the data set's folder of pictures."""
    text: str
    harmful: bool | None
    """By the data set's own two classes, or ``merged`` where it has three; None where the data set says nothing of
    harm, and no trial is scored on it."""
    level: Level | None = None
    """Where the data set has three."""
    source_label: str
    """In the data set's own words."""
    targets: tuple[str, ...] = ()
    tasks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Gold labels by task of the data set's card, in a run that asks another question than of harm; of a task that is
    absent there is no gold label."""
    shares: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Share of the annotators by label, by task, where the card keeps their votes."""
    annotators: dict[str, int] = Field(default_factory=dict)
    """Number of the annotators by task, likewise."""
    ocr: str = ""
    """Words read off the picture, as the data set has them, in a run that asks another question than of harm."""
    caption: str = ""
    """Description of the picture by the data set's authors, likewise."""
    language: str = ""
    """Language of the text, as the data set's card has it; empty where it names none."""
    group: str = ""
    """Template, family or source; intervals are drawn over groups."""
    template: str = ""
    """Id of the first judged meme whose picture is nearly this one's, in a run that holds templates apart; empty where
    no other meme of the run shares one. Intervals are drawn over these, too."""

    def gold(self, protocol: Protocol) -> bool | None:
        """True if the meme is harmful; None if the protocol drops it.

        Raises:
            ValueError: The protocol is not for a data set of this kind.
        """
        # Both kinds of protocol are refused for the other kind of data: figures would bear the wrong name.
        if self.level is None:
            if protocol is not Protocol.PLAIN:
                raise ValueError(f"a data set of two classes has no protocol {protocol}")
            return self.harmful
        if protocol is Protocol.PLAIN:
            raise ValueError("a data set of three levels needs the protocol merged or extreme")
        return of_level(self.level, protocol)
