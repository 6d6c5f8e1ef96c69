"""Draft heads beside a target on a GPU: the torch executor's networks over paged attention, greedy chains as graphs."""
