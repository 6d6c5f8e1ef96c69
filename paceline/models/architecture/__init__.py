"""What a model computes: its configuration, from whichever file, and the names and shapes of its tensors."""
