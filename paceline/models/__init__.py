"""Models as files and as passes: readers of checkpoints, tokenizers, and the executors behind `CausalLM`."""
