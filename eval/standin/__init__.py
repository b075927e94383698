"""Stand-ins for what the court depends on: a model server without a model, PostgreSQL, and our own programs."""
