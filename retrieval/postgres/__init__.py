"""Libraries of precedents in a PostgreSQL database with pgvector, for several replicas that share it."""
