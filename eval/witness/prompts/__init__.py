"""Words of the questions that only the evaluation asks."""
