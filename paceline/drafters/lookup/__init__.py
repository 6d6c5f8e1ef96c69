"""Lookup drafters that combine the request's own text, past outputs, and a memory of the model's answers."""
