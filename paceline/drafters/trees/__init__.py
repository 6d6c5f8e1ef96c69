"""Shapes of draft trees, and their construction level by level, for drafters with probabilities."""
