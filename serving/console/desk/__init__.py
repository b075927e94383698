"""Pages of the desk: the queue, a case, search, similar trials and how far reviewers agree."""

from __future__ import annotations

from collections.abc import Sequence

from serving.console.desk import agreement, case, find, queue, similar
from serving.console.registry import Page

PAGES: Sequence[Page] = (*queue.PAGES, *case.PAGES, *similar.PAGES, *find.PAGES, *agreement.PAGES)
"""In the order of the navigation."""
