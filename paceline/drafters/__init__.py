"""Drafters: one module per method, and the protocol that all of them implement (`base`)."""
