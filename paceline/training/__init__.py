"""Training of draft heads, draft models, memories for lookups and the DISCO classifier; they are used elsewhere."""
