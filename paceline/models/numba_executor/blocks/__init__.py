"""Products with matrices in the blocks of GGUF files: 2- to 8-bit codes with a scale per 16 or 32 weights.

`formats.py` describes each kind of block, `unpack.py` reads the file's bytes, `pack.py` lays them out for the kernels,
`kernels.py` compiles one kernel per kind and `product.py` calls it. Not for finding tensors in files
(`models/files/gguf_file.py`).
"""
