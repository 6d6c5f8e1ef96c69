"""The loop: what a step is, and the two doors to it, `LLM` for a program and `AsyncLLM` for many clients."""
