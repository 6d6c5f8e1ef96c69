"""The engine loop and its two interfaces: `LLM` for a program, `AsyncLLM` for many concurrent clients."""
