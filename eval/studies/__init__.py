"""Studies of the court that need several runs, or measure something other than a score."""
