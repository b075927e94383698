"""Finding precedents: encoders, the library on disk, exact fused search."""
