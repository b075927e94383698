"""Building, opening and searching libraries of precedents."""
