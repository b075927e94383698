"""The docket's tables in SQLite or PostgreSQL."""
