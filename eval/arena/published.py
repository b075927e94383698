"""Published figures of the arena's procedures, for comparison; ratings of MemeArena average 1000, as ours do.

MemeArena: Chen et al., EMNLP 2025, arXiv 2510.27196, tables 1 and 2. ProBench: table 1, single-round track, where every
model meets one baseline with a fixed rating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NDCG_SOURCE = "MemeArena (Chen et al., EMNLP 2025, arXiv 2510.27196), table 2"


@dataclass(frozen=True, slots=True)
class PublishedRating:
    """One model's published figures.

    Attributes:
        win_rate: Share of its battles that it won; None if we could not read it.
        battles: Number of its battles; None if we could not read it.
    """

    model: str
    rating: float
    win_rate: float | None = None
    battles: int | None = None


MEMEARENA = (
    PublishedRating("Gemini 2", 1448.16, 0.8968, 673),
    PublishedRating("Qwen2.5-VL-32B", 1308.11, 0.7997, 816),
    PublishedRating("Gemini 1.5", 1303.03, 0.7971, 782),
    PublishedRating("Qwen-VL-Max", 1099.89, 0.6030, 739),
    PublishedRating("GPT-4o mini", 1093.74, 0.5899, 728),
    PublishedRating("GPT-4o", 1054.36, 0.5420, 820),
    PublishedRating("Pixtral-124B", 1042.08, 0.5325, 742),
    PublishedRating("Step-1o", 1023.59, 0.5113, 782),
    PublishedRating("Qwen2.5-VL-7B", 1005.71, 0.4897, 730),
    PublishedRating("Step-1v", 914.45, 0.3877, 782),
    PublishedRating("Doubao-Pro", 869.46, 0.3441, 790),
    PublishedRating("LLaVA-NeXT-34B", 818.73, 0.2908, 768),
    PublishedRating("Pixtral-12B", 747.07, 0.2240, 579),
    PublishedRating("Doubao-Lite", 693.32, 0.1796, 779),
    PublishedRating("LLaVA-NeXT-8B", 578.31, 0.1065, 780),
)

MEMEARENA_NDCG: Mapping[str, tuple[float, float, float, float, float]] = {
    "own": (0.98, 0.99, 0.68, 0.93, 0.89),
    "human": (0.97, 0.93, 0.96, 0.98, 0.96),
    "none": (0.99, 0.96, 0.97, 0.68, 0.90),
    "fused": (1.00, 0.97, 0.97, 0.99, 0.98),
}
"""NDCG of each judge with the joint vote of the panel, by reference: GPT-4o, Gemini 2, Qwen2.5-VL-32B, Step-1o, mean.

As printed, mean included: the mean of the rounded cells may be another number.
"""

PROBENCH_BASELINE = 1114.0
"""Rating of ProBench's baseline, by which all others are fixed."""
PROBENCH = (
    PublishedRating("Pixtral-Large", 1229, 0.6597),
    PublishedRating("claude-3.5-sonnet", 1228, 0.6584),
    PublishedRating("gemini-1.5-pro", 1118),
    PublishedRating("gpt-4o-mini", 1094),
    PublishedRating("gpt-4o-08-06", 1079),
    PublishedRating("InternVL2.5-78B", 1064),
    PublishedRating("Pixtral-12B", 1037),
    PublishedRating("gemini-1.5-flash", 1009),
    PublishedRating("Aria", 990),
    PublishedRating("InternVL2.5-38B", 987),
    PublishedRating("Qwen2-VL-72B", 978),
    PublishedRating("InternVL2.5-26B", 900),
    PublishedRating("InternVL2.5-8B", 878),
    PublishedRating("Molmo-72B", 856),
    PublishedRating("NVLM-D", 834),
    PublishedRating("Qwen2-VL-7B", 818),
    PublishedRating("Llama-3.2-90B", 782),
    PublishedRating("llava-ov-72b", 734),
    PublishedRating("MiniCPM-V-2.6", 689),
    PublishedRating("Llama-3.2-11B", 688),
    PublishedRating("llava-ov-7b", 688),
    PublishedRating("Molmo-7B-D", 617),
    PublishedRating("Molmo-7B-O", 540),
)
"""Win rates stand where they could be read."""
