"""The expert witness: claims of fact in a meme are compared with evidence (EMULATE; docs/expert.md)."""
