"""What guesses the next tokens: one module per method, and the protocol they all keep (`base`)."""
