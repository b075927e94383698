"""Child processes that may be killed."""
