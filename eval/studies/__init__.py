"""Questions about the court that take more than one run, or another measure than a score."""
