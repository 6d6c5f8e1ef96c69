"""Models: readers of checkpoints, tokenizers, and the executors that implement `CausalLM`."""
