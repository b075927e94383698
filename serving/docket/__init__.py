"""The store of records."""
