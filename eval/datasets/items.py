"""A meme of a data set that is to be judged."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.protocol import Level, Protocol, of_level


class _ItemModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JudgedMeme(_ItemModel):
    """A meme to be judged; one line of ``memes.jsonl``."""

    id: str = Field(min_length=1)
    split: str
    line: int = Field(ge=0)
    """Position in its file, counted from 1."""
    image: str
    """File name of its picture, relative to the data set's folder of pictures."""
    text: str
    harmful: bool | None
    """Class in the data set's own two classes, or by ``merged`` if it has three; None if the data set has no label of
    harm, and no trial is scored on it."""
    level: Level | None = None
    """Level of harm, if the data set has three."""
    source_label: str
    """Label in the data set's own words."""
    targets: tuple[str, ...] = ()
    tasks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Gold labels by task of the data set's card, in a run that asks a question other than harm; absent tasks have no
    gold label."""
    shares: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Share of annotators per label, by task, if the card keeps their votes."""
    annotators: dict[str, int] = Field(default_factory=dict)
    """Number of annotators by task, if the card keeps their votes."""
    ocr: str = ""
    """Text in the picture as provided by the data set, in a run that asks a question other than harm."""
    caption: str = ""
    """Description of the picture by the data set's authors, in such a run."""
    language: str = ""
    """Language of the text according to the data set's card; empty if unknown."""
    group: str = ""
    """Template, family or source; confidence intervals resample whole groups."""
    template: str = ""
    """Id of the first judged meme with a near-duplicate picture, in a run that separates templates; empty if no other
    meme of the run shares it. Confidence intervals resample these groups, too."""

    def gold(self, protocol: Protocol) -> bool | None:
        """True if the meme is harmful; None if the protocol drops it.

        Raises:
            ValueError: The protocol does not apply to a data set of this kind.
        """
        # Each kind of protocol is refused for the other kind of data, as results would be labelled wrongly.
        if self.level is None:
            if protocol is not Protocol.PLAIN:
                raise ValueError(f"a data set of two classes has no protocol {protocol}")
            return self.harmful
        if protocol is Protocol.PLAIN:
            raise ValueError("a data set of three levels needs the protocol merged or extreme")
        return of_level(self.level, protocol)
