"""The process that hashes and compares pictures: started by :mod:`retrieval.near_duplicates.comparer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2

from court.backends.sandbox import child as worker_child
from retrieval.near_duplicates.match import Agreement, MatchThresholds, fingerprint, pictures_match
from retrieval.near_duplicates.tiles import Tolerance


def answer(job: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Hashes the frames in the payloads, or compares them with frames of a known meme, if there are any."""
    known = job["known"]
    if not known:
        frames = fingerprint(payloads)
        return {}, [b"".join(view.hashes.tobytes() for frame in frames for view in frame)]
    nearness = job["nearness"]
    tiles = {name: Tolerance(**nearness[name]) for name in ("tiles", "tiles_if_misread")}
    same = pictures_match(
        fingerprint(payloads[:known]),
        fingerprint(payloads[known:]),
        MatchThresholds(**{**nearness, **tiles}),
        Agreement(job["agreement"]),
    )
    return {"same": same}, []


def main() -> None:
    """Serves jobs until the parent process exits."""
    # Each thread reserves its own address space, which the sandbox limits.
    cv2.setNumThreads(1)
    worker_child.serve(answer)


if __name__ == "__main__":
    main()
