"""Lookup drafters: what followed the same tokens in the request's own text, past outputs, or a memory of answers."""
