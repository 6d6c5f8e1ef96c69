"""The parts of `benchmarks/gpu.py`: stand-ins for weights and drafts, checks, and speeds."""
