"""Several threads and one engine: who steps it, who waits for its outputs, and whose turn a shared device is."""
