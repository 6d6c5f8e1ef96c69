"""Options: what commands share, each written once, and how their values are read."""
