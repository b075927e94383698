"""The policy: what counts as harm is the platform's to say."""

from __future__ import annotations

from dataclasses import dataclass

from court.digests import digest


@dataclass(frozen=True, slots=True)
class Policy:
    """A versioned statement of what counts as harm.

    Attributes:
        id: The platform's name for it.
        version: Changes whenever the wording does.
        text: The policy itself.
    """

    id: str
    version: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of id, version and text, as ``sha256:…``."""
        return digest({"id": self.id, "version": self.version, "text": self.text})


DEFAULT_POLICY = Policy(
    id="memecourt-default",
    version="1",
    text=(
        "A meme is harmful when picture and text together attack, demean or call for hurting a person or a group, or "
        "spread claims that put health, safety or a fair vote at risk. Mocking an idea, a habit or oneself is not harm."
    ),
)
