"""Reviews by people: the queue, its locks, and what overruled verdicts lead to."""
