"""Stored form of a library: the manifest of a generation and its memes."""

from __future__ import annotations

import base64
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from court.precedents import MinSimilarity, PrecedentLabel, RiskCurve, SureRange, VoteSettings
from court.verdict import Label
from retrieval.embed.encoder import EncoderIdentity
from retrieval.text import normalise_text, text_key

FORMAT = 3
"""Version of the format on disk. A court reads this one, and says of any other what to do.

1 kept no pictures; 2 kept labels and texts as JSON lines, all of which had to be in memory. No release wrote either.
"""

VECTORS = "vectors.npy"
FLAGS = "flags.npy"
MEMES = "memes.sqlite"
JOURNAL = "journal.bin"
PICTURES = "pictures.bin"
MANIFEST = "manifest.json"

HARMFUL, HAS_TEXT, HAS_PICTURE, KEPT, VERIFIED = 1, 2, 4, 8, 16
"""Bits of a meme's flags: what a search needs of every row, a byte each."""

MAX_KEPT_BYTES = 1024 * 1024
"""A picture that is kept is smaller: 512 x 512 values of three colours, uncompressed, are three quarters of this."""


class _Stored(BaseModel):
    # A field that is not known here is damage or another format: neither may be passed over.
    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredPicture(_Stored):
    """Place of a picture in ``pictures.bin``, or in the journal if its meme is there."""

    offset: int = Field(ge=0)
    size: int = Field(ge=1, le=MAX_KEPT_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of these bytes, checked whenever they are read."""


DuplicateKey: TypeAlias = tuple[str, str, bool]
"""Words, pixels, and whether it was found harmful."""


class LabelledMeme(_Stored):
    """A meme whose label is known; one row of ``memes.sqlite``, or a part of an entry of the journal."""

    id: str = Field(min_length=1, max_length=200)
    label: PrecedentLabel
    text: str = ""
    categories: tuple[str, ...] = ()
    source: str = ""
    """The data set and split, or the person, that it came from."""
    source_label: str = ""
    """The label in the source's own words: several of them may mean one of ours."""
    bytes_sha256: str = ""
    pixels_sha256: str = ""
    """Both empty where the picture was not at hand."""
    has_text: bool
    """Whether there is a text half to compare."""
    has_picture: bool
    """Whether there is a picture half to compare."""
    kept: StoredPicture | None = None
    """Its picture, small, to be shown; None where it was not at hand."""
    split: str = ""
    """Of its data set; empty where that has none."""
    namespace: str = ""
    """Whose content it is."""
    language: str = ""
    """BCP 47 tag of its text; empty where that is not known."""
    policy: str = ""
    """Name of the policy that it was labelled by; empty where that is not known."""
    added: AwareDatetime | None = None
    """When it came into the library."""
    verified: bool = False
    """Whether a person has confirmed its label here; what a data set says is not that."""
    who: str = ""
    """Who put it in or gave it its label last; empty for a build."""

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if not self.has_text and not self.has_picture:
            raise ValueError("a meme without text and picture can't be a precedent")
        return self

    @property
    def harmful(self) -> bool:
        """True if it was labelled harmful."""
        return self.label is Label.HARMFUL

    @property
    def duplicate_key(self) -> DuplicateKey | None:
        """The key that near-identical precedents share: words, pixels and label; None if there is nothing to compare.

        Words are what is embedded, so that neither spacing nor a watermark makes another meme. Where there are no
        pictures, the words are all there is to tell memes apart. One meme under both labels speaks for both, once each:
        that people disagreed about it is worth knowing.
        """
        if self.has_picture and not self.pixels_sha256:
            return None  # of which picture it is, nobody has noted
        words = text_key(normalise_text(self.text))
        return (words, self.pixels_sha256, self.harmful) if words or self.pixels_sha256 else None

    @property
    def flags(self) -> int:
        """The bits of it."""
        return (
            (HARMFUL if self.harmful else 0)
            | (HAS_TEXT if self.has_text else 0)
            | (HAS_PICTURE if self.has_picture else 0)
            | (KEPT if self.kept is not None else 0)
            | (VERIFIED if self.verified else 0)
        )


class FileEntry(_Stored):
    """A file of the generation."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Counts(_Stored):
    """Number of memes, in all and of each kind."""

    memes: int = Field(ge=1)
    with_text: int = Field(ge=0)
    with_picture: int = Field(ge=0)
    harmful: int = Field(ge=0)
    not_harmful: int = Field(ge=0)
    kept_pictures: int = Field(ge=0)
    kept_bytes: int = Field(ge=0)
    """Size of all pictures that are kept."""

    @classmethod
    def of(cls, flags: NDArray[np.uint8], kept_bytes: int) -> Counts:
        """The counts of memes with these flags, shape (memes,). Raises ValueError if there are none."""
        if not flags.size:
            raise ValueError("a library needs at least one meme")

        def count(flag: int) -> int:
            return int(np.count_nonzero(flags & flag))

        # What is not harmful is the rest: a precedent has one of two labels, and no third.
        harmful = count(HARMFUL)
        return cls(
            memes=flags.size,
            with_text=count(HAS_TEXT),
            with_picture=count(HAS_PICTURE),
            harmful=harmful,
            not_harmful=flags.size - harmful,
            kept_pictures=count(KEPT),
            kept_bytes=kept_bytes,
        )


class Calibration(_Stored):
    """Accuracy of a library's vote on its own memes, each left out with all that share its picture or text."""

    method: Literal["leave-one-out", "defaults"]
    """``defaults`` where there were too few memes to choose by; the figures are then absent."""
    n: int = Field(ge=0)
    """Memes voted on."""
    accuracy: float | None = Field(default=None, ge=0, le=1)
    macro_f1: float | None = Field(default=None, ge=0, le=1)
    brier: float | None = Field(default=None, ge=0, le=1)
    """Mean squared difference of probability and label; 0.25 is what a coin is worth."""
    majority: float = Field(ge=0, le=1)
    """Share of the more frequent label: what always saying it would score."""
    settled_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the memes that the vote settled, by bounds that were chosen without them."""
    settled_error: float | None = Field(default=None, ge=0, le=1)
    """Share of those that it settled wrongly; None where it settled none."""
    repeated: float | None = Field(default=None, ge=0, le=1)
    """Share of the library's memes that another one repeats: with the same picture or words, or nearly the same; None
    where it was not measured."""
    note: str = ""

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy, in [0, 1]; all of it where it was not measured."""
        if self.accuracy is None:
            return 0.0, 1.0
        z, p, n = 1.96, self.accuracy, self.n
        # Wilson's and not the normal interval: that one has no width at 0 and 1, where few memes are measured.
        middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


class Safeguards(_Stored):
    """Safeguards against a few precedents deciding alone; chosen when a library is built, and calibrated with.

    That clones count once needs no setting. What a library says nothing of was off when it was built: what a new one
    is built with is :data:`USUAL`.
    """

    per_source: int | None = Field(default=None, ge=1)
    """At most so many precedents of one source are found; None for no bound. Off where there is one source."""
    per_cluster: int | None = Field(default=None, ge=1)
    """At most so many precedents of one label that are nearly the same are found; None for no bound."""
    verified_only: bool = False
    """Whether precedents whose label nobody has confirmed are left out; off where none is confirmed."""
    no_sole_acquittal: bool = False
    """Whether a precedent is left out without which the vote would not be for "not harmful"."""
    sources: int = Field(default=0, ge=0)
    """How many sources there were when the library was calibrated."""

    @property
    def cap(self) -> int | None:
        """Largest number of precedents of one source in a result; None for any number."""
        return self.per_source if self.sources > 1 else None


USUAL = Safeguards(per_cluster=1)
"""Safeguards of a library where nobody says otherwise: a crowd of the same memes has one voice."""


class Regression(_Stored):
    """A logistic regression of harm on a meme's vectors, fitted to a library and calibrated on held-out memes of it."""

    intercept: float = Field(allow_inf_nan=False)
    weights: str
    """float32 of shape (text_dim + picture_dim,), little-endian, base64."""
    text_dim: int = Field(ge=0)
    """Length of the text half."""
    strength: float = Field(gt=0)
    """Inverse strength of its L2 penalty (C), chosen by held-out likelihood."""

    @classmethod
    def of(cls, weights: NDArray[np.float64], intercept: float, *, text_dim: int, strength: float) -> Self:
        """A regression of these weights, shape (text_dim + picture_dim,)."""
        packed = base64.b64encode(weights.astype("<f4").tobytes()).decode("ascii")
        return cls(intercept=intercept, weights=packed, text_dim=text_dim, strength=strength)

    def log_odds(self, text: NDArray[np.float32] | None, picture: NDArray[np.float32] | None) -> float:
        """Calibrated log-odds of harm of a meme's vectors, shapes (text_dim,) and (picture_dim,); None says nothing."""
        # An absent half adds nothing: in the fit it stood as zeros.
        weights = np.frombuffer(base64.b64decode(self.weights), dtype="<f4").astype(np.float64)
        z = self.intercept
        for half, part in ((text, weights[: self.text_dim]), (picture, weights[self.text_dim :])):
            if half is not None:
                z += float(half.astype(np.float64) @ part)
        return z


class TextTuning(_Stored):
    """Settings of search and vote for a meme without a picture, in place of those of the same names in a tuning."""

    vote: VoteSettings
    calibration: Calibration
    settles: SureRange | None = None
    regression: Regression | None = None
    risk: RiskCurve | None = None


class Tuning(_Stored):
    """Settings of search and vote, chosen when a library is built."""

    alpha: float = Field(ge=0, le=1)
    """Weight of the text where the caller names none."""
    vote: VoteSettings
    floors: MinSimilarity
    text_floors: dict[str, float] = Field(default_factory=dict)
    """Minimum similarities of texts by script (:func:`retrieval.text.script_of`), where they were measured: unrelated
    texts lie nearer in one script than in another. ``floors.text`` stands for the others."""
    calibration: Calibration
    settles: SureRange | None = None
    """Where the vote alone will do; None where nowhere."""
    settle_error: float = Field(default=0.05, gt=0, lt=1)
    """Share of wrong labels that was put up with there; all libraries of before this was kept put up with the same."""
    safeguards: Safeguards = Safeguards()
    """Libraries of before this was kept had none."""
    regression: Regression | None = None
    """Joined with the vote; None where there were too few memes to fit one."""
    risk: RiskCurve | None = None
    """How often verdicts are wrong, by how many memes are sent to a person; None where it was not measured."""
    text_alone: TextTuning | None = None
    """For memes without a picture, chosen and measured by the texts of the library's memes alone; None where no meme
    has a picture, so that all else here is, and in libraries of before this was kept."""

    def for_query(self, *, text: bool, picture: bool) -> Tuning:
        """Returns the tuning of searches for a meme with these halves.

        What was chosen and measured with pictures is too sure of a text alone. Where nothing else is known, the vote
        has to do: it settles nothing, and how often it is wrong is not known.

        Args:
            text: True if the meme has a text to compare.
            picture: True if it has a picture to compare.
        """
        # With all weight on the text, the tuning was chosen by texts alone as it is (no meme has a picture).
        if picture or not text or self.alpha == 1:
            return self
        if self.text_alone is None:
            return self.model_copy(update={"settles": None, "regression": None, "risk": None})
        return self.model_copy(update={"alpha": 1.0, **dict(self.text_alone)})

    def floors_of(self, script: str) -> MinSimilarity:
        """Returns the minimum similarities for a meme whose text is of a script."""
        return self.floors.model_copy(update={"text": self.text_floors.get(script, self.floors.text)})


class Manifest(_Stored):
    """One generation of a library. Its SHA-256 is the digest of the library: it holds those of the files."""

    format: int = Field(ge=1)
    name: str = Field(min_length=1, max_length=200)
    created: AwareDatetime
    software: str
    """Version of what wrote it."""
    encoder: EncoderIdentity
    counts: Counts
    tuning: Tuning
    sources: dict[str, int]
    """Memes per source."""
    lineage: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Drawn when the library is built, and carried on by whatever is changed in it: in one lineage an id is never given
    to a second meme."""
    changes: int = Field(default=0, ge=0)
    """Changes that were recorded before this generation was written: the next one has the number after."""
    files: dict[str, FileEntry]
