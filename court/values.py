"""Base of the values that records, files and settings consist of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """An immutable value. An unknown field is an error: it must not be read as if it were absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")
