"""Evidence for claims of fact: a corpus of documents on disk, and search endpoints configured by the user."""
