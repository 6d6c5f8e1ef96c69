"""Triton kernels. Importing a module of this folder imports triton; nothing else does."""
