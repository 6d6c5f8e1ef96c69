"""Shapes of draft trees, and the growing of them level by level, for every drafter that has probabilities."""
