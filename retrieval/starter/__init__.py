"""The starter library: 120 tame labelled memes about invented groups, and their pictures."""
