"""Runs: a data set judged once, as files of plain formats that can be resumed, reported and compared."""
