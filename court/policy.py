"""The policy: a file in which the platform defines what counts as harm; replacing it needs no code change."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from court.digests import digest
from court.errors import BadRequest
from court.values import Value


class Clause(Value):
    """One numbered sentence of a policy."""

    number: str = Field(pattern=r"^[0-9A-Za-z.]{1,12}$")
    category: str = Field(min_length=1, max_length=60)
    text: str = Field(min_length=1, max_length=2000)
    facts: bool = False
    """True if the clause depends on whether something is true, so that the expert witness may have to be called."""
    reasons: tuple[str, ...] = Field(default=(), max_length=3)
    """Reasons that reviewers may choose with the clause, instead of writing their own."""
    # Tests of the policy: no role is shown them, and no record holds them.
    violates: tuple[str, ...] = Field(default=(), max_length=200, exclude=True)
    """Texts of memes that the clause forbids (``memecourt-eval policy test``)."""
    allows: tuple[str, ...] = Field(default=(), max_length=200, exclude=True)
    """Texts of memes that come near to what the clause forbids, and are allowed by it."""


class Policy(Value):
    """A versioned statement of what counts as harm; the digest reveals a forgotten change of version."""

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
        """SHA-256 of the policy's content, as ``sha256:…``."""
        # Only the wording: a trial with a witness lists the clauses on facts among its settings, and no role is shown
        # the reasons.
        return digest(self.model_dump(mode="json", exclude={"clauses": {"__all__": {"facts", "reasons"}}}))

    @property
    def categories(self) -> tuple[str, ...]:
        """Distinct categories of the clauses, in order."""
        return tuple(dict.fromkeys(clause.category for clause in self.clauses))

    @property
    def clauses_on_facts(self) -> tuple[str, ...]:
        """Numbers of the clauses that depend on whether something is true."""
        return tuple(clause.number for clause in self.clauses if clause.facts)

    @property
    def turns_on_facts(self) -> bool:
        """True if there is a clause that depends on whether something is true."""
        return bool(self.clauses_on_facts)

    @property
    def text(self) -> str:
        """Policy as shown to the roles."""
        clauses = [f"{clause.number}. ({clause.category}) {clause.text}" for clause in self.clauses]
        return "\n".join([self.preamble.strip(), "", *clauses])

    @classmethod
    def load(cls, path: Path) -> Self:
        """Loads a policy from a TOML file.

        Raises:
            BadRequest: The file can't be read or is not a valid policy; the message names the faults.
        """
        try:
            return cls.model_validate(tomllib.loads(path.read_text("utf-8-sig")))
        except OSError as error:
            # Only `strerror`: the full message contains the path, which must not reach callers.
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
