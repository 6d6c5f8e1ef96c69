"""Training from end to end: the target writes or reads a text, a head or a draft learns from it, and is saved."""
