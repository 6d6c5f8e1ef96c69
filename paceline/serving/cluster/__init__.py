"""Many models on a cluster: a plan's groups, who takes which request, and what becomes of a group that dies."""
