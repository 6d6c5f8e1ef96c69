"""The training loop of heads and draft models: its interface, optimisers, checkpoints and the end at Ctrl-C."""
