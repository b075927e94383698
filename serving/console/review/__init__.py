"""Pages of the desk: the queue, a case, search, similar trials and how far reviewers agree."""

from __future__ import annotations

from collections.abc import Sequence

from serving.console.registry import Page
from serving.console.review import agreement, case, find, queue, similar

PAGES: Sequence[Page] = (*queue.PAGES, *case.PAGES, *similar.PAGES, *find.PAGES, *agreement.PAGES)
"""In the order of the navigation."""
