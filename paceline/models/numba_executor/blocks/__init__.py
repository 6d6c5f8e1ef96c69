"""Matrices in the blocks a GGUF file stores: 2- to 8-bit codes with a scale per 16 or 32, multiplied as they are.

`formats.py` says what each kind of block holds, `unpack.py` reads the file's bytes, `pack.py` lays them out for the
kernels, `kernels.py` compiles one kernel per kind and `product.py` calls it. Not for who has which tensor
(`models/gguf_file.py`).
"""
