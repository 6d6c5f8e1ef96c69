"""Draft heads on a GPU: the torch executor's networks with paged attention, and greedy chains as CUDA graphs."""
