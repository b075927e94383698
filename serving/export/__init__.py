"""Records for people and programs elsewhere: as pages, JSON, tables, and as statements of reasons."""
