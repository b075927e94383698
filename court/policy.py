"""The policy: what counts as harm is the platform's to say, in a file, and swapping it needs no code."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from court.digests import digest
from court.errors import BadRequest


class Clause(BaseModel):
    """One numbered sentence of a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: str = Field(pattern=r"^[0-9A-Za-z.]{1,12}$")
    category: str = Field(min_length=1, max_length=60)
    text: str = Field(min_length=1, max_length=2000)
    facts: bool = False
    """Whether it turns on whether something is true, so that an expert witness may have to be heard."""


class Policy(BaseModel):
    """A versioned statement of what counts as harm.

    Attributes:
        id: The platform's name for it.
        version: Changes whenever the wording does; the digest says if that was forgotten.
        preamble: Text that applies to all clauses.
        targets: Whom harm may be aimed at.
        clauses: Clauses that define harm, each under one category.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=128)
    version: str = Field(min_length=1, max_length=64)
    preamble: str = Field(min_length=1, max_length=10_000)
    targets: tuple[str, ...] = Field(min_length=1)
    clauses: tuple[Clause, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _numbers_differ(self) -> Self:
        numbers = [clause.number for clause in self.clauses]
        if len(set(numbers)) < len(numbers):
            raise ValueError("two clauses have the same number")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of all its words, as ``sha256:…``."""
        # Without `facts`, which is none: policies of before it was there, and requests that name one, keep their
        # digests. A trial with a witness has those clauses among its settings.
        return digest(self.model_dump(mode="json", exclude={"clauses": {"__all__": {"facts"}}}))

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of the clauses, each once, in their order."""
        return tuple(dict.fromkeys(clause.category for clause in self.clauses))

    @property
    def clauses_on_facts(self) -> tuple[str, ...]:
        """Numbers of the clauses that turn on whether something is true."""
        return tuple(clause.number for clause in self.clauses if clause.facts)

    @property
    def turns_on_facts(self) -> bool:
        """True if there is such a clause."""
        return bool(self.clauses_on_facts)

    @property
    def text(self) -> str:
        """The policy as agents are shown it."""
        clauses = [f"{clause.number}. ({clause.category}) {clause.text}" for clause in self.clauses]
        return "\n".join([self.preamble.strip(), "", *clauses])

    @classmethod
    def load(cls, path: Path) -> Self:
        """The policy in a TOML file.

        Raises:
            BadRequest: The file can't be read, or is no policy; what is wrong with it is named.
        """
        try:
            return cls.model_validate(tomllib.loads(path.read_text("utf-8-sig")))
        except OSError as error:
            # `strerror` alone: the full message has the path, which no caller is shown.
            raise BadRequest(
                f"The policy file can't be read: {error.strerror}.", reason="BAD_POLICY", field="policy"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            raise BadRequest("The policy file is no TOML.", reason="BAD_POLICY", field="policy") from None
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'policy'}: {fault['msg']}"
                for fault in error.errors(include_input=False, include_url=False)
            )
            raise BadRequest(f"The policy file is no policy: {faults}.", reason="BAD_POLICY", field="policy") from None


DEFAULT_POLICY = Policy.load(Path(__file__).parent / "policies" / "default.toml")
