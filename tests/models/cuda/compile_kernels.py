"""`python -m tests.models.cuda.compile_kernels 80 90`: kernels down to machine code of those GPUs, with no GPU there.

Triton's interpreter forgives what its compiler does not: types that change in a loop, shapes that are no powers of two.
Every kernel for the first, for others one of each form that differs there: that wait for the kernel before them, or
have products on tensor cores; for GPUs before compute capability 8.0 one of each of the latter. Prints a line for each,
with the bytes of memory that a block of threads shares.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline.models.cuda_executor.kernels import (
    attention,
    blocks,
    cut_races,
    ends,
    entries,
    experts,
    lookups,
    products,
    races,
    recurrent,
    verdicts,
)
from paceline.models.cuda_executor.kernels.tiles import GATES

PLACES = ("first_page", "natural_lengths", "lengths", "first_branch", "tile_rows", "tile_sizes", "flat")
SUMS = {"mixed": "*fp32", "peaks": "*fp32", "totals": "*fp32"}
COUNTS = {"num_rows": "i32", "num_outputs": "i32", "num_inputs": "i32", "out_columns": "i32", "num_columns": "i32"}
ALIGNED = ("query", "keys", "values", "x", "weight", "added", "out", "num_outputs", "num_inputs")
"""Arguments that are multiples of 16, as they are when layers run: loads of these are prepared ahead."""
SUMMED = ("HAS_BIAS", "GATE", "EVEN")
HEAD = {"HEAD_DIM": 128, "BLOCK_D": 128, "SPLIT": 256}


def kernels(kind: str, bytes_each: int, waits: bool, key_bytes: int = attention.KEY_BYTES):
    """(kernel, types of its arguments, its compile-time arguments, options) for numbers of one kind."""
    data = {name: f"*{kind}" for name in ("query", "keys", "values", "sinks", "x", "weight", "bias", "out")}
    waiting, two = {"WAITS": waits}, {"num_stages": 2}
    places = dict.fromkeys(PLACES, "*i32")
    wide = dict.fromkeys(("query", "keys", "values", "out"), "*fp32")
    for is_only, size, width, group, own in (
        (False, bytes_each, 128, 6, {}), (True, bytes_each, 128, 6, {}), (False, 4, 64, 6, wide),
        (False, bytes_each, 128, 71, {}),  # heads that share their keys: the largest tile
        (True, bytes_each, 512, 8, {}),  # the widest heads, Gemma 4's
    ):  # fmt: skip
        queries = attention.queries_of_tile(group)
        block_n, warps = attention.block_keys(width, size, queries, key_bytes)
        yield attention._attend_split, data | SUMS | places | COUNTS | {"scale": "fp32"} | own, waiting | {
            "CAP": 5.0, "WINDOW": 33, "GROUP": group, "KEY_HEADS": 2, "QUERIES": queries, "BLOCK_N": block_n,
            "PAGE": 16, "IS_ONLY": is_only, "HAS_SINKS": is_only, "HEAD_DIM": width, "BLOCK_D": width, "SPLIT": 256,
        }, {"num_stages": 1, "num_warps": warps}  # fmt: skip
    yield attention._add_splits, data | SUMS | places | COUNTS, HEAD | waiting | {
        "WINDOW": 33, "HEADS": 12, "HAS_SINKS": True,
    }, two  # fmt: skip
    tiles = [(products.tile_of(*shape, bytes_each, False), 0) for shape in ((151_936, 1536), (1536, 8960), (256, 40))]
    tiles += [(products.tile_of(8960, 1536, bytes_each, True), gate) for gate in (1, 2)]
    tiles += [(products.tile_in_parts(*shape, bytes_each), 0) for shape in ((2048, 1536), (1536, 8960))]
    for tile, gate in tiles:
        own = tile.options()
        options = {name: own.pop(name) for name in ("num_stages", "num_warps")}
        yield products._product, data | COUNTS | {"out": "*fp32"}, own | waiting | {
            "HAS_BIAS": gate > 0, "GATE": gate, "EVEN": gate == 1, "READS_EARLY": tile.reads_early,
        }, options  # fmt: skip
    yield products._row_mean, {"x": "*fp32", "out": "*fp32"} | COUNTS, {"BLOCK": 1024}, two
    rows = {"x": "*fp32", "added": "*fp32", "total": "*fp32", "gate": f"*{kind}", "up": f"*{kind}", "eps": "fp32"}
    strides = ("columns", "added_stride", "out_stride", "gate_stride", "up_stride")
    rows |= {"asked": "*i32"} | dict.fromkeys(strides, "i32")
    rows_of_heads = data | rows | {"weight": "*fp32", "asked": "*fp32"}
    yield (
        entries._rms_norm,
        rows_of_heads,
        {"PARTS": 4, "HAS_BIAS": False, "PICKS": False, "BLOCK": 2048} | waiting,
        two,
    )
    yield entries._rms_norm, data | rows, {"PARTS": 4, "HAS_BIAS": True, "PICKS": True, "BLOCK": 2048} | waiting, two
    yield entries._gated, data | rows, {"IS_SILU": False, "BLOCK": 1024} | waiting, two
    heads = {name: f"*{kind}" for name in ("key", "value", "query_weight", "key_weight")}
    heads |= {"cosines": "*fp32", "sines": "*fp32", "slots": "*i64"}
    heads |= dict.fromkeys(("query_stride", "key_stride", "value_stride", "part_stride"), "i32")
    yield entries._place_heads, data | rows | heads, {
        "PARTS": 4, "HAS_BIAS": True, "HEADS": 12, "KEY_HEADS": 2, "HEAD_DIM": 128, "ROTARY": 128,
        "HAS_NORM": True, "NORMS_VALUES": True, "BLOCK_D": 128,
    } | waiting, two  # fmt: skip
    program = dict.fromkeys(("rows", "taps", "bias", "decay", "shift", "skip"), f"*{kind}") | {"out": "*fp32"}
    program |= {"starts": "*i32", "steps": "*i32", "states": "*fp32", "kept": "*fp32"} | dict.fromkeys(
        ("row_stride", "layer"), "i32"
    )  # fmt: skip
    sizes = {"LAYERS": 18, "KERNEL": 4, "STATE": 3 * 6144 + 16 * 128 * 128, "INPUTS": 6144 + 32} | waiting
    yield recurrent._run_convolution, program, sizes | {"CHANNELS": 2048, "BLOCK": recurrent._CHANNELS}, {}
    for adds in (False, True):
        yield recurrent._run_matrix, program, sizes | {
            "KEY_HEADS": 16, "VALUE_HEADS": 16, "KEY_DIM": 128, "VALUE_DIM": 128, "TILED": waits, "BLOCK_K": 128,
            "BLOCK_V": recurrent._COLUMNS, "QUERY_AT": 0, "KEY_AT": 2048, "VALUE_AT": 4096, "GATES": 16 * (2 - adds),
            "ADDS": adds, "HAS_BIAS": adds,
        }, {}  # fmt: skip
    race = {
        "logits": "*fp32",
        "peaks": "*fp64",
        "rows": "*i64",
        "temperatures": "*fp64",
        "min_p": "*fp64",
        "keys": "*i64",
    }
    race |= {"times": "*fp64", "places": "*i32", "picks": "*i64", "columns": "i32", "num_chunks": "i32", "ids": "*i64"}
    for has_ids in (False, True):
        yield races._race_of_chunks, race, {"HAS_IDS": has_ids, "CHUNK": races._CHUNK}, two
    yield races._race_of_rows, race, {"BLOCK": 128}, two
    cut = race | {"edges": "*fp32", "top_p": "*fp64"}
    yield cut_races._cut_race, cut, {"CHUNK": cut_races._CHUNK}, two | {"num_warps": cut_races._WARPS}
    tables = {"tokens": "*i32", "picks": "*i32", "table": f"*{kind}", "out": "*fp32"}
    tables |= dict.fromkeys(("columns", "first", "size"), "i32")
    yield ends._embedded, tables, {"BLOCK": 2048}, two
    yield ends._embedded, tables | {"tokens": "*i64", "picks": "*i64"}, {"BLOCK": 2048}, two
    angles = {"positions": "*i32", "frequencies": "*fp32", "cosines": "*fp32", "sines": "*fp32", "factor": "fp32"}
    yield ends._angles, angles, {"HALF": 48, "BLOCK": 64}, two
    peaks = {"logits": "*fp32", "peaks": "*fp32", "places": "*i32", "columns": "i32", "num_chunks": "i32"}
    peaks |= {"masses": "*fp32", "best": "*i64", "probs": "*fp32"}
    yield ends._peaks_of_chunks, peaks, {"WEIGHS": True, "CHUNK": 4096} | waiting, two
    yield ends._likeliest_of_rows, peaks, {"BLOCK": 64} | waiting, two
    yield ends._peaks_of_rows, peaks | {"table": "*fp64", "picks": "*i32"}, {"BLOCK": 64} | waiting, two
    texts = dict.fromkeys(("packed", "picks", "texts", "tokens", "slots"), "*i32")
    texts |= dict.fromkeys(("num_rows", "width", "spare_slot", "size"), "i32")
    yield lookups._remember, texts, {}, {"num_warps": 1}
    for earliest in (False, True):
        yield lookups._advance, texts, {
            "FLAT": 10, "ROWS": lookups._ROWS, "LONGEST": 3, "SHORTEST": 1, "EARLIEST": earliest, "PAGE": 16,
            "BLOCK": lookups._BLOCK,
        }, two  # fmt: skip
    verdict = dict.fromkeys(("packed", "picks", "accepted", "roots"), "*i32") | {"drafts": "*fp64"}
    numbers = ("num_rows", "num_below", "num_tokens", "num_levels", "width", "spare_slot", "longest", "size")
    verdict |= dict.fromkeys((*numbers, "level_stride", "request_stride"), "i32")
    for kernel in (verdicts._continue_chain, verdicts._continue_pass):
        yield kernel, verdict, {"FLAT": 10, "ROWS": verdicts._ROWS, "PAGE": 16}, {"num_warps": 1}
    matrix = {"codes": "*u8", "scales": "*fp16", "shifts": "*fp16", "values": "*fp32"}
    for halves, table, gate, parts in ((True, False, 1, False), (False, False, 0, True), (True, True, 0, False)):
        own = blocks.block_tile(8960, 1536, in_parts=parts).options()
        options = {name: own.pop(name) for name in ("num_stages", "num_warps")}
        form = {"SPAN": 32, "ZERO": 8, "HALVES": halves, "HAS_VALUES": table, "HAS_SHIFT": not table}
        yield blocks._block_product, data | matrix | COUNTS | {"out": "*fp32"}, form | own | waiting | {
            "HAS_BIAS": True, "GATE": gate, "EVEN": not table,
        }, options  # fmt: skip
        yield blocks._widen, data | matrix | COUNTS, form | {"BLOCK_N": 16, "BLOCK_K": 128}, two
    chosen = {"logits": "*fp32", "slots": "*i64", "spare_slot": "i32", "num_experts": "i32", "num_pairs": "i32"}
    chosen |= {"shares": "*fp32"} | dict.fromkeys(("experts", "members", "counts"), "*i32")
    routing = {"HAS_SLOTS": True, "TOP_K": 8, "RESCALES": True, "BLOCK": 128, "CHOICES": 8}
    for grouped in (False, True):
        form = {"SIGMOID": grouped, "HAS_SELECTION": grouped, "GROUPS": 8 if grouped else 1, "KEPT": 4}
        yield experts._route, chosen | {"selection": "*fp32", "scale": "fp32"}, routing | form | waiting, two
    yield experts._group, chosen, {"TILE": 16, "BLOCK": 4096} | waiting, two
    for activation, shape, kind_of_out in (
        ("clamped", (2880, 2880), {}), (None, (2048, 768), {"out": "*fp32"}), ("relu2", (1856, 2688), {})
    ):  # fmt: skip
        gate = GATES[activation]
        for in_blocks in (False, True):
            tile = blocks.block_tile(*shape) if in_blocks else products.tile_of(*shape, bytes_each, gate > 0)
            own = tile.options()
            options = {name: own.pop(name) for name in ("num_stages", "num_warps")}
            of_all = {name: own[name] for name in ("SWAPS", "BLOCK_M", "BLOCK_N", "BLOCK_K")} | waiting | {
                "TOP_K": 8, "HAS_BIAS": gate != 0, "GATE": gate, "EVEN": gate == 0,
            }  # fmt: skip
            form = {"SPAN": 32, "ZERO": 16, "HALVES": True, "HAS_VALUES": True, "HAS_SHIFT": False} if in_blocks else {}
            kernel = experts._expert_block_product if in_blocks else experts._expert_product
            yield kernel, data | matrix | COUNTS | chosen | kind_of_out, form | of_all, options


def differs(kernel, constants, capability: int) -> bool:
    """Whether the kernel is another one on GPUs of that capability than on those before them."""
    has_cores = kernel in (
        attention._attend_split, products._product, blocks._block_product, experts._expert_product,
        experts._expert_block_product,
    )  # fmt: skip
    is_wide = constants.get("HEAD_DIM") == 64  # in float32, without tensor cores
    return (has_cores or (capability >= 90 and "WAITS" in constants)) and not is_wide


def form(kernel, constants) -> tuple:
    """What a kernel is apart from the sizes of its tile and from what it does with its sums: one of a form shows how
    all of it differ on another GPU."""
    switches = ((name, bool(value)) for name, value in constants.items() if not name.startswith(("BLOCK", *SUMMED)))
    return kernel, *sorted(switches)


def main(*capabilities: int) -> None:
    for capability in capabilities:
        made = set()
        is_old = capability < 80  # which have neither bfloat16 nor as much shared memory
        how = ("fp16", 2, False, attention.OLD_KEY_BYTES) if is_old else ("bf16", 2, capability >= 90)
        for kernel, types, constants, options in kernels(*how):
            kind = kernel if is_old else form(kernel, constants)
            is_new = kind not in made and differs(kernel, constants, capability)
            if capability == capabilities[0] or is_new:
                made.add(kind)
                compile_kernel(capability, kernel, types, constants, options)


def compile_kernel(capability: int, kernel, types, constants, options) -> None:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if name in ALIGNED}
    places = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, aligned)
    how = options | ({"launch_pdl": True} if constants.get("WAITS") else {})
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=how)
    print(capability, kernel.__name__, made.metadata.shared, len(made.asm["cubin"]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
