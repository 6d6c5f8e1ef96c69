"""Cost of matrix products with block formats by number of rows M: t(M) / t(1), and share of the read bandwidth.

    python benchmarks/block_cost.py --formats Q4_1 Q4_K Q6_K
    python benchmarks/block_cost.py --shape 8960 1536 --rows 1 4 8 64 512

Weights are random. Several copies are used in turn, so that every product reads them from memory and not from a cache.
Times are the lowest decile of this process's CPU time on one thread, to which other programs add little. Not for the
other costs of a pass (`cost_curve.py`).
"""

import argparse
import tempfile
import time
from collections.abc import Callable

import numpy as np
from common import console, finish, show
from numba import njit

from paceline.models.compiled.kernel import entry
from paceline.models.numba_executor import operand
from paceline.models.numba_executor.blocks import product
from paceline.models.numba_executor.blocks.formats import FORMATS, NAMES, PANEL, BlockFormat
from paceline.models.numba_executor.blocks.pack import pack, panel_bytes
from paceline.models.numba_executor.blocks.unpack import Codes

_multiply = entry(product.multiply_blocks.py_func)


def main() -> None:
    args = parse()
    outputs, depth = args.shape
    bandwidth = read_bandwidth(max(args.memory, 128) << 20)
    console.print(f"read bandwidth of one thread: {bandwidth / 1e9:.1f} GB/s")
    figures = {name: cost(name, outputs, depth, args) for name in args.formats}
    header = ["format", "GB/s at 1 row", "of bandwidth", *(f"t({m})/t(1)" for m in args.rows), "GMAC/s at most rows"]
    body = []
    for name, (size, seconds) in figures.items():
        first, last = seconds[args.rows[0]], args.rows[-1]
        speed = size / first
        ratios = [seconds[m] / first for m in args.rows]
        body.append([name, speed / 1e9, speed / bandwidth, *ratios, last * outputs * depth / seconds[last] / 1e9])
    show(f"{outputs} x {depth}, one thread, processor time", header, body)
    seconds = {name: {str(m): t for m, t in times.items()} for name, (_, times) in figures.items()}
    finish({"shape": args.shape, "bandwidth": bandwidth, "seconds": seconds})


def cost(name: str, outputs: int, depth: int, args: argparse.Namespace) -> tuple[int, dict[int, float]]:
    """(bytes of the matrix, number of rows to seconds)."""
    copies = matrices(FORMATS[name], outputs, depth, args.memory << 20)
    most = max(args.rows)
    x = rounded(np.random.default_rng(1).standard_normal((most, depth)).astype(np.float32))
    out, bias = np.zeros(most * outputs, np.float32), np.zeros(0, np.float32)
    times: dict[int, list[float]] = {m: [] for m in args.rows}
    for number in range(args.repeat):
        for m in args.rows:
            w = copies[(number * len(args.rows) + args.rows.index(m)) % len(copies)]
            run = (x, 0, m, depth, w, 0, bias, 0, out, 0, outputs, 0, outputs // PANEL, False)
            times[m].append(processor_time(lambda run=run: _multiply(*run)))
    return len(copies[0].data), {m: float(np.quantile(t[1:], 0.1)) for m, t in times.items()}


def matrices(form: BlockFormat, outputs: int, depth: int, memory: int) -> list[product.Blocks]:
    """Copies of a random matrix, together at least `memory` bytes."""
    rng = np.random.default_rng(0)

    def numbers(spans: int, kind: type) -> np.ndarray:
        return rng.uniform(1, 10, (outputs, depth // spans)).astype(kind)

    steps = np.int8 if form.signed else np.uint8
    codes = Codes(
        rng.integers(0, 16 if form.table else form.largest_code + 1, (outputs, depth), np.uint8),
        numbers(form.unit, np.float16),
        numbers(form.unit, np.float16) if form.shifts else None,
        numbers(form.span, steps) if form.stepped else None,
        numbers(form.span, steps) if form.stepped and form.shifts else None,
    )
    data, size = pack(codes, form), panel_bytes(form, depth)
    starts = np.arange(outputs // PANEL) * size
    kinds = np.full(len(starts), NAMES.index(form.name))
    count = -(-memory // len(data)) + 1
    mapped = on_disk(data, count)
    return [product.with_kernels(mapped[i * len(data) :][: len(data)], starts, kinds) for i in range(count)]


def on_disk(data: np.ndarray, count: int) -> np.ndarray:
    """`count` copies in a memory-mapped file, as weights are stored; `data` must be a whole number of cache lines."""
    with tempfile.TemporaryFile() as file:
        for _ in range(count):
            data.tofile(file)
        file.flush()
        return np.memmap(file, np.uint8, "r").view(np.ndarray)


@njit
def _fill(codes, source, count, depth):
    for row in range(count):
        operand.put(codes, row, depth, 0, source, row * depth, depth)


def rounded(rows: np.ndarray) -> operand.Operand:
    """[rows, depth] floats as an operand."""
    codes = operand.new_operand(rows.size, np.int8, fine=True)
    _fill(codes, rows.reshape(-1), *rows.shape)
    return codes


@njit(error_model="numpy", fastmath=True)
def _total(numbers):
    total = np.int64(0)
    for i in range(len(numbers)):
        total += numbers[i]
    return total


def read_bandwidth(size: int) -> float:
    """Bytes per second that one thread reads from memory when it sums them up."""
    numbers = np.ones(size // 8, np.int64)
    return size / min(processor_time(lambda: _total(numbers)) for _ in range(8))


def processor_time(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"], choices=NAMES)
    parser.add_argument("--shape", type=int, nargs=2, default=[8960, 1536], help="outputs and depth of the matrix")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--memory", type=int, default=256, help="MiB of copies, more than the caches hold")
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
