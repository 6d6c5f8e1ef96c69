"""Functions that Numba compiles, for any package: how they are compiled, and a cache of them on disk."""
