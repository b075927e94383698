"""The starter library: 120 tame labelled memes of our own, about invented groups, and the code that draws them."""
