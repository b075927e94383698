"""Published figures of the probe's procedure, for comparison: AdamMeme (Chen et al., ACL 2025, arXiv 2507.01702).

Scores are means over eight categories, failure rates are shares of originals and rewritten memes together (its tables 1
and 2: 1,577 originals, 200 a category where there are as many, ten seeds, ten steps).
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "AdamMeme (Chen et al., ACL 2025, arXiv 2507.01702), tables 1 and 2"


@dataclass(frozen=True, slots=True)
class PublishedTarget:
    """One target's published figures.

    Attributes:
        failure: Failure rate of the memes as they are and rewritten, together.
        failure_before: Failure rate of the memes as they are.
    """

    target: str
    score: float
    failure: float
    failure_before: float


PUBLISHED = (
    PublishedTarget("LLaVA-v1.6-7B", 5.05, 0.3706, 0.3280),
    PublishedTarget("LLaVA-v1.6-34B", 6.05, 0.1866, 0.1459),
    PublishedTarget("Qwen-VL-Chat", 4.13, 0.5414, 0.5111),
    PublishedTarget("Qwen2.5-VL-7B", 6.21, 0.2059, 0.1841),
    PublishedTarget("QwQ-32B", 6.14, 0.1753, 0.1539),
    PublishedTarget("Qwen-VL-Max", 4.92, 0.3863, 0.3541),
    PublishedTarget("Doubao-Lite", 5.57, 0.2802, 0.2329),
    PublishedTarget("Doubao-Pro", 4.67, 0.4758, 0.4334),
    PublishedTarget("Step-1v", 6.81, 0.0970, 0.0729),
    PublishedTarget("Step-1o", 7.44, 0.0497, 0.0289),
    PublishedTarget("GPT-4o", 7.38, 0.0218, 0.0070),
)
