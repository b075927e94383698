"""The library of precedents in a PostgreSQL database with pgvector."""
