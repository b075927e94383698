"""Ask a MemeCourt service for verdicts: the public contract and a typed client."""
