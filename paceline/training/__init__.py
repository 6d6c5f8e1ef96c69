"""What trains: data, losses, a recipe per method and the loop, for draft heads, draft models, memories and DISCO."""
