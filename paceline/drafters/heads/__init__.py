"""Drafters around trained heads: networks that read the target's hidden states."""
