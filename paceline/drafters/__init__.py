"""Drafters: a folder for each kind, and the protocol that all of them implement (`base`)."""
