"""One training run, whatever is trained: what a trainee is, the loop, optimisers, checkpoints, an end at Ctrl-C."""
