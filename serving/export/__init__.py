"""Records for people and programs elsewhere: as pages, JSON, PDF, tables, and as statements of reasons."""
