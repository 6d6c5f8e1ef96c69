"""The target as its own drafter: fewer layers, fewer keys, or spare rows of its passes."""
