"""Fields of a statement of reasons for the EU's DSA Transparency Database, by ``dsa_schema.json``.

Source: the database's API documentation, https://transparency.dsa.ec.europa.eu/page/api-documentation, as it stands
since the categories and keywords were changed on 1 July 2025. What the words mean is explained at
https://transparency.dsa.ec.europa.eu/page/additional-explanation-for-statement-attributes. The duty is that of Articles
17 and 24(5) of Regulation (EU) 2022/2065.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

_DATA = json.loads(files(__package__).joinpath("dsa_schema.json").read_text("utf-8"))

SOURCE: str = _DATA["source"]
AS_OF: str = _DATA["as_of"]
WORDS: Mapping[str, Sequence[str]] = _DATA["words"]
"""Fields that take certain words, and those."""
LENGTHS: Mapping[str, int] = _DATA["lengths"]
"""Most characters of the fields that take text."""
REQUIRED: Sequence[str] = _DATA["required"]
"""Fields without which no statement about terms of use is taken; of those of what was done, one stands for all."""
