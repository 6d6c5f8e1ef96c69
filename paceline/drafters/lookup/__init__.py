"""Lookups that blend evidence: the request itself, past outputs, and a memory of the model's answers."""
