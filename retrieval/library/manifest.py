"""Stored form of a library: the manifest of a generation and its memes."""

from __future__ import annotations

import base64
import hashlib
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, Field, model_validator

from court.precedents import MinSimilarity, PrecedentLabel, RiskCurve, SureRange, VerifiedCopy, VoteSettings
from court.values import Value
from court.verdict import Label
from retrieval.embed.encoder import EncoderIdentity
from retrieval.text import normalise_text, text_key

FORMAT = 3
"""Version of the format on disk; only this one can be read."""

VECTORS = "vectors.npy"
FLAGS = "flags.npy"
MEMES = "memes.sqlite"
JOURNAL = "journal.bin"
PICTURES = "pictures.bin"
MANIFEST = "manifest.json"

HARMFUL, HAS_TEXT, HAS_PICTURE, KEPT, VERIFIED, BINDING = 1, 2, 4, 8, 16, 32
"""Bits of a meme's flags, one byte per row, which a search needs for every row."""

MAX_KEPT_BYTES = 1024 * 1024
"""Maximum size of a stored picture, in bytes; 512 x 512 uncompressed RGB pixels are three quarters of this."""


class StoredPicture(Value):
    """Location of a picture in ``pictures.bin``, or in the journal for a meme added there."""

    offset: int = Field(ge=0)
    size: int = Field(ge=1, le=MAX_KEPT_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of these bytes, verified on every read."""


DuplicateKey: TypeAlias = tuple[str, str, bool]
"""Normalised text, digest of the pixels, and True if harmful."""


def copy_key(pixels_sha256: str, text: str | None) -> str:
    """Returns the key under which copies of a meme are found: its pixels, or a digest of its text without any."""
    return pixels_sha256 or hashlib.sha256(text_key(text or "").encode("utf-8", "surrogatepass")).hexdigest()


class LabelledMeme(Value):
    """A meme whose label is known; one row of ``memes.sqlite``, or a part of an entry of the journal."""

    id: str = Field(min_length=1, max_length=200)
    label: PrecedentLabel
    text: str = ""
    categories: tuple[str, ...] = ()
    source: str = ""
    """Data set and split, or person, that it came from."""
    source_label: str = ""
    """Label in the source's own words; several may map to one of ours."""
    bytes_sha256: str = ""
    pixels_sha256: str = ""
    """Both digests are empty if the picture was not available."""
    has_text: bool
    has_picture: bool
    kept: StoredPicture | None = None
    """Thumbnail; None if the picture was not available."""
    split: str = ""
    namespace: str = ""
    language: str = ""
    """BCP 47 tag of its text; empty if unknown."""
    policy: str = ""
    """Name of the policy that it was labelled by; empty if unknown."""
    added: AwareDatetime | None = None
    """Time of addition to the library, or of the confirmation by ``who``; None if unknown."""
    verified: bool = False
    """True if a person has confirmed its label here, as opposed to the data set's label."""
    binding: bool = False
    """True if ``who`` answers for the label, so that it settles exact copies of the meme."""
    who: str = ""
    """Person who added it, relabelled it last or confirmed its label; empty for a data set's own label."""

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if not self.has_text and not self.has_picture:
            raise ValueError("a meme without text and picture can't be a precedent")
        if self.binding and not (self.verified and self.who and self.added):
            raise ValueError("a label binds only if it says who verified it, and when")
        return self

    @property
    def harmful(self) -> bool:
        """True if it is labelled harmful."""
        return self.label is Label.HARMFUL

    @property
    def duplicate_key(self) -> DuplicateKey | None:
        """Key shared by duplicate precedents: text, pixels and label; None if there is nothing to compare."""
        # The text is normalised as for embedding, so that spacing or a watermark makes no difference. Without pictures,
        # only texts distinguish memes. A meme with both labels counts once for each, as the disagreement is
        # informative.
        if self.has_picture and not self.pixels_sha256:
            return None  # the digest of its picture is unknown
        words = text_key(normalise_text(self.text))
        return (words, self.pixels_sha256, self.harmful) if words or self.pixels_sha256 else None

    @property
    def copy_key(self) -> str:
        """Key of its copies if it binds: its pixels, or its text where it has none; otherwise empty."""
        # The digest of a picture that was not available is unknown: then the meme has no copies.
        if not self.binding or (self.has_picture and not self.pixels_sha256):
            return ""
        return copy_key(self.pixels_sha256, self.text)

    def copy_of(self, pixels_sha256: str, text: str | None) -> VerifiedCopy | None:
        """Returns it as a binding copy of a meme; None if it is none. ``text`` is None for any."""
        same_text = text is None or text_key(text) == text_key(self.text)
        if not self.copy_key or self.added is None or self.pixels_sha256 != pixels_sha256 or not same_text:
            return None
        return VerifiedCopy(
            id=self.id, label=self.label, who=self.who, at=self.added, namespace=self.namespace, policy=self.policy
        )

    @property
    def flags(self) -> int:
        """Flag bits of the meme."""
        return (
            (HARMFUL if self.harmful else 0)
            | (HAS_TEXT if self.has_text else 0)
            | (HAS_PICTURE if self.has_picture else 0)
            | (KEPT if self.kept is not None else 0)
            | (VERIFIED if self.verified else 0)
            | (BINDING if self.binding else 0)
        )


class FileEntry(Value):
    """A file of the generation."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Counts(Value):
    """Numbers of memes, in total and of each kind."""

    memes: int = Field(ge=1)
    with_text: int = Field(ge=0)
    with_picture: int = Field(ge=0)
    harmful: int = Field(ge=0)
    not_harmful: int = Field(ge=0)
    kept_pictures: int = Field(ge=0)
    kept_bytes: int = Field(ge=0)
    """Total size of the stored pictures, in bytes."""

    @classmethod
    def of(cls, flags: NDArray[np.uint8], kept_bytes: int) -> Counts:
        """Counts memes by their flags, shape (memes,). Raises ValueError if there are none."""
        if not flags.size:
            raise ValueError("a library needs at least one meme")

        def count(flag: int) -> int:
            return int(np.count_nonzero(flags & flag))

        # The rest is not harmful, as there are only two labels.
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


class Calibration(Value):
    """Leave-one-out accuracy of a library's vote, where memes with the same picture or text are excluded too."""

    method: Literal["leave-one-out", "defaults"]
    """``defaults`` if there were too few memes to calibrate; the figures are then absent."""
    n: int = Field(ge=0)
    accuracy: float | None = Field(default=None, ge=0, le=1)
    macro_f1: float | None = Field(default=None, ge=0, le=1)
    brier: float | None = Field(default=None, ge=0, le=1)
    """Mean squared difference of probability and label (Brier score); 0.25 for a coin flip."""
    majority: float = Field(ge=0, le=1)
    """Share of the more frequent label, the accuracy of always predicting it."""
    settled_share: float | None = Field(default=None, ge=0, le=1)
    """Share of memes decided by the vote alone, with bounds chosen without them."""
    settled_error: float | None = Field(default=None, ge=0, le=1)
    """Share of wrong labels among those; None if there are none."""
    repeated: float | None = Field(default=None, ge=0, le=1)
    """Share of the library's memes with a duplicate or near-duplicate in it; None if not measured."""
    note: str = ""

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the accuracy, in [0, 1]; (0, 1) if not measured."""
        if self.accuracy is None:
            return 0.0, 1.0
        z, p, n = 1.96, self.accuracy, self.n
        # Wilson's instead of the normal interval, which has zero width at 0 and 1 even for few memes.
        middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


class Safeguards(Value):
    """Safeguards against a few precedents deciding alone, part of a calibration; duplicates always count once."""

    per_source: int | None = Field(default=None, ge=1)
    """Maximum number of precedents per source in a result; None for no limit. Off if there is only one source."""
    per_cluster: int | None = Field(default=None, ge=1)
    """Maximum number of near-duplicate precedents with the same label in a result; None for no limit."""
    verified_only: bool = False
    """True to exclude precedents with unverified labels; off if none is verified."""
    no_sole_acquittal: bool = False
    """True to exclude a precedent on which a vote for "not harmful" depends alone."""
    sources: int = Field(default=0, ge=0)
    """Number of sources when the library was calibrated."""

    @property
    def cap(self) -> int | None:
        """Largest number of precedents of one source in a result; None for any number."""
        return self.per_source if self.sources > 1 else None


USUAL = Safeguards(per_cluster=1)
"""Default safeguards: a cluster of near-duplicates has one vote."""


class Regression(Value):
    """A logistic regression of harm on a meme's vectors, fitted to a library and calibrated on held-out memes of it."""

    intercept: float = Field(allow_inf_nan=False)
    weights: str
    """float32 of shape (text_dim + picture_dim,), little-endian, base64."""
    text_dim: int = Field(ge=0)
    strength: float = Field(gt=0)
    """Inverse strength of its L2 penalty (C), chosen by held-out likelihood."""

    @classmethod
    def of(cls, weights: NDArray[np.float64], intercept: float, *, text_dim: int, strength: float) -> Self:
        """Creates a regression with these weights, shape (text_dim + picture_dim,)."""
        packed = base64.b64encode(weights.astype("<f4").tobytes()).decode("ascii")
        return cls(intercept=intercept, weights=packed, text_dim=text_dim, strength=strength)

    def log_odds(self, text: NDArray[np.float32] | None, picture: NDArray[np.float32] | None) -> float:
        """Returns calibrated log-odds of harm; vectors of shapes (text_dim,) and (picture_dim,), None if missing."""
        # A missing half adds nothing, as it was zeros in the fit.
        weights = np.frombuffer(base64.b64decode(self.weights), dtype="<f4").astype(np.float64)
        z = self.intercept
        for half, part in ((text, weights[: self.text_dim]), (picture, weights[self.text_dim :])):
            if half is not None:
                z += float(half.astype(np.float64) @ part)
        return z


class TextTuning(Value):
    """Settings of search and vote for a meme without a picture, in place of those of the same names in a tuning."""

    vote: VoteSettings
    calibration: Calibration
    settles: SureRange | None = None
    regression: Regression | None = None
    risk: RiskCurve | None = None


class Tuning(Value):
    """Settings of search and vote, chosen when a library is built."""

    alpha: float = Field(ge=0, le=1)
    vote: VoteSettings
    floors: MinSimilarity
    text_floors: dict[str, float] = Field(default_factory=dict)
    """Measured minimum text similarities by script (:func:`retrieval.text.script_of`), as unrelated texts are more
    similar in some scripts than in others. ``floors.text`` applies to all others."""
    calibration: Calibration
    settles: SureRange | None = None
    """Range in which the vote alone decides; None if it never does."""
    settle_error: float = Field(default=0.05, gt=0, lt=1)
    safeguards: Safeguards = Safeguards()
    regression: Regression | None = None
    """Regression combined with the vote; None if there were too few memes to fit one."""
    risk: RiskCurve | None = None
    """Error rates of verdicts by the share of memes sent to review; None if not measured."""
    text_alone: TextTuning | None = None
    """Settings for memes without a picture, chosen and measured on texts alone; None if no meme of the library has a
    picture, as the main settings then are just that."""

    def for_query(self, *, text: bool, picture: bool) -> Tuning:
        """Returns the tuning of searches for a meme with these halves."""
        # Settings chosen with pictures are overconfident for a text alone. Without text-only settings, the vote is
        # used, but it is never conclusive and its error rate is unknown.
        # With all weight on the text, this tuning was already chosen on texts alone.
        if picture or not text or self.alpha == 1:
            return self
        if self.text_alone is None:
            return self.model_copy(update={"settles": None, "regression": None, "risk": None})
        return self.model_copy(update={"alpha": 1.0, **dict(self.text_alone)})

    def floors_of(self, script: str) -> MinSimilarity:
        """Returns the minimum similarities for a meme whose text is of a script."""
        return self.floors.model_copy(update={"text": self.text_floors.get(script, self.floors.text)})


class Manifest(Value):
    """One generation of a library. Its SHA-256 is the library's digest, as it contains the digests of all files."""

    format: int = Field(ge=1)
    name: str = Field(min_length=1, max_length=200)
    created: AwareDatetime
    software: str
    encoder: EncoderIdentity
    counts: Counts
    tuning: Tuning
    sources: dict[str, int]
    notes: tuple[str, ...] = ()
    """Sentences on how the rows of the sources were read, and why some were left out."""
    lineage: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Random id created when the library is built and kept across changes: within one lineage, an id is never reused
    for another meme."""
    changes: int = Field(default=0, ge=0)
    """Number of the last change before this generation was written."""
    files: dict[str, FileEntry]
