"""One module per published layout of draft heads: from its files to a `HeadRecord`, and back where people need it."""
