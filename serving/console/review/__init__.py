"""Pages of the review queue: the queue, a case, search, similar trials."""
