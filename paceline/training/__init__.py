"""Training of small parts: what is learned here is used elsewhere without torch."""
