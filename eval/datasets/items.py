"""A meme of a data set, with its gold labels."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from eval.datasets.protocol import Level, Protocol, of_level


class JudgedMeme(BaseModel):
    """A meme of a data set; one line of ``memes.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    split: str
    file: str = ""
    """Name of its file below the data set's directory."""
    line: int = Field(ge=0)
    """Position in its file, counted from 1: a line, or a row in formats without lines."""
    image: str = ""
    """Name of its picture: as given in the row, or relative to the folder of pictures where that was found."""
    text: str = ""
    ocr: str = ""
    """Text in the picture as provided by the data set."""
    caption: str = ""
    """Description of the picture by the data set's authors."""
    language: str = ""
    """Language of the text according to the data set's card; empty if unknown."""
    group: str = ""
    """Template, family or source; confidence intervals resample whole groups."""
    template: str = ""
    """Id of the first judged meme with a near-duplicate picture, in a run that separates templates; empty if no other
    meme of the run shares it. Confidence intervals resample these groups, too."""
    tasks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Gold labels by task of the card: one, or for a task with several labels any number of them. A task that is absent
    has no gold label for this meme: its annotators left it open, or it applies only to some memes."""
    shares: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Share of annotators per label, by task, if the card keeps their votes."""
    annotators: dict[str, int] = Field(default_factory=dict)
    """Number of annotators by task, if the card keeps their votes."""
    harmful: bool | None = None
    """Class in the data set's own two classes, or by ``merged`` if it has three; None without a label of harm: no trial
    is scored on such a meme."""
    level: Level | None = None
    """Level of harm, if the data set has three."""
    source_label: str = ""
    """Label of harm in the data set's own words."""
    targets: tuple[str, ...] = ()

    @property
    def picture(self) -> tuple[str, dict[str, str]]:
        """Name of its picture, and the fields that may be used in a folder's name."""
        return self.image, {"id": self.id, "language": self.language, "group": self.group}

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
