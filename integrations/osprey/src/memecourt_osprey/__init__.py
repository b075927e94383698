"""Functions for the rules of Osprey that ask a MemeCourt about memes."""
