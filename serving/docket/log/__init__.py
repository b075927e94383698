"""The docket as a transparency log: what it consists of, how it is signed, and how it is checked. No database here."""
