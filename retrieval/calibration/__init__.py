"""What a vote of precedents is worth, told from the library itself."""
