"""What the court adds to the time of its model calls."""
