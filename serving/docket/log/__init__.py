"""The docket's transparency log: data structures, signatures and verification, independent of any database."""
