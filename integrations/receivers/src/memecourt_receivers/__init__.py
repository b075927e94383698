"""Tells other moderation tools what a MemeCourt found."""
