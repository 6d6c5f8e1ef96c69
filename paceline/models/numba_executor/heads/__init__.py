"""Draft heads on the CPU kernels: each family is a list of operations that one compiled function interprets."""
