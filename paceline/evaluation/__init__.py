"""The laboratory: what a pass costs, what drafters are worth, and the searches that choose them. No engine needs it."""
