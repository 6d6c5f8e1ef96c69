"""Models behind HTTP: one on this machine, or many on a cluster, as a plan says."""
