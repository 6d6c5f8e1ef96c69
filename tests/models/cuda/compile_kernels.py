"""`python -m tests.models.cuda.compile_kernels 80`: every kernel down to machine code of that GPU, with no GPU there.

Triton's interpreter forgives what its compiler does not: types that change in a loop, shapes that are no powers of two.
Prints a line for each, with the bytes of memory that a block of threads shares.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline.models.cuda_executor.kernels import attention, blocks, entries, products

PLACES = ("first_page", "natural_lengths", "lengths", "first_branch", "tile_rows", "tile_sizes", "flat")
SUMS = {"mixed": "*fp32", "peaks": "*fp32", "totals": "*fp32"}
COUNTS = {"num_rows": "i32", "num_outputs": "i32", "num_inputs": "i32", "row_bytes": "i32", "num_columns": "i32"}
TILE = {"BLOCK_M": 16, "BLOCK_N": 32}
HEAD = {"HEAD_DIM": 128, "BLOCK_D": 128, "SPLIT": 256}


def kernels(kind: str, bytes_each: int):
    """(kernel, types of its arguments, its compile-time arguments) for numbers of one kind."""
    data = {name: f"*{kind}" for name in ("query", "keys", "values", "x", "weight", "bias", "out")}
    places = dict.fromkeys(PLACES, "*i32")
    block_n = attention.block_keys(128, bytes_each)
    yield attention._attend_split, data | SUMS | places | COUNTS | {"scale": "fp32"}, HEAD | {
        "CAP": 5.0, "WINDOW": 33, "GROUP": 6, "KEY_HEADS": 2, "QUERIES": 16, "BLOCK_N": block_n, "PAGE": 16,
    }  # fmt: skip
    yield attention._add_splits, data | SUMS | places | COUNTS, HEAD | {"WINDOW": 33, "HEADS": 12}
    yield products._product, data | COUNTS, TILE | {"HAS_BIAS": True, "BLOCK_K": 128}
    yield products._row_mean, {"x": "*fp32", "out": "*fp32"} | COUNTS, {"BLOCK": 1024}
    rows = {
        "added": f"*{kind}",
        "total": f"*{kind}",
        "columns": "i32",
        "eps": "fp32",
        "gate": f"*{kind}",
        "up": f"*{kind}",
    }
    rows |= {"gate_stride": "i32", "up_stride": "i32"}
    yield entries._rms_norm, data | rows, {"HAS_ADDED": True, "BLOCK": 2048}
    yield entries._gated, data | rows, {"IS_SILU": False, "BLOCK": 1024}
    heads = {name: f"*{kind}" for name in ("key", "value", "query_weight", "key_weight")}
    heads |= {"cosines": "*fp32", "sines": "*fp32", "slots": "*i64"}
    heads |= {"query_stride": "i32", "key_stride": "i32", "value_stride": "i32"}
    yield entries._place_heads, data | rows | heads, {
        "HEADS": 12, "KEY_HEADS": 2, "HEAD_DIM": 128, "ROTARY": 128, "HAS_NORM": True, "BLOCK_D": 128,
    }  # fmt: skip
    matrix = {"codes": "*u8", "scales": "*fp16", "shifts": "*fp16", "values": "*fp32"}
    for halves, table in ((True, False), (False, True)):
        yield blocks._block_product, data | matrix | COUNTS, TILE | {
            "SPAN": 32, "ZERO": 8, "HALVES": halves, "HAS_VALUES": table, "HAS_SHIFT": not table, "HAS_BIAS": True,
            "HALF": 16, "BLOCK_B": 64,
        }  # fmt: skip


def main(capability: int) -> None:
    for kernel, types, constants in kernels("bf16", 2):
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else types[name] for name in names}
        source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_stages": 2})
        print(kernel.__name__, made.metadata.shared, len(made.asm["cubin"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
