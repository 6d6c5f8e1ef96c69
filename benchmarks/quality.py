"""Quality of storage types of weights: perplexity on a text, and agreement of the most probable token.

float32 is the reference. The change is given with the standard error of its mean over tokens. The text is cut into
windows that each start without context; every type reads the same ones. Top-1 agreement is the share of positions whose
most likely next token is float32's. ``gguf/int8`` is dtype ``gguf`` with keys and values kept as ``int8``;
``torch/bfloat16`` is PyTorch's arithmetic. llama.cpp (llama-cpp-python) may read the same windows of ids.

    python benchmarks/quality.py --text novel.txt
    python benchmarks/quality.py --text novel.txt --dtypes gguf --peer llama-cpp
    python benchmarks/quality.py --text novel.txt --tokens 16384 --window 1024 --dtypes bfloat16 int8 --json

The last line of standard output is one JSON object.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from common import console, finish, show
from peers.llama_cpp import LlamaCppLogits
from rich.progress import track

from paceline.models.base import PAGE_SIZE, CausalLM
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource, resolve_model
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.model import TorchModel

Reader = Callable[[list[int]], Iterable[np.ndarray]]
"""From a window's ids to the logits below each, in pieces [rows, vocab] that hold until the next is asked for."""
_ROWS = 128


def main() -> None:
    args = parse()
    source = resolve_model(args.model)
    text = args.text.read_text()[args.skip :]
    ids = source.tokenizer.encode(text[: 8 * args.tokens])[: args.tokens]
    windows = [ids[i : i + args.window] for i in range(0, len(ids) - 1, args.window)]
    results, reference = {}, None
    for name, logits_of in readers(args, source):
        losses, best = read(logits_of, windows, name)
        reference = (losses, best) if reference is None else reference
        more = losses - reference[0]
        results[name] = {
            "perplexity": float(np.exp(losses.mean())),
            "change": float(np.expm1(more.mean())),
            "error": float(more.std() / len(more) ** 0.5),
            "top1_agreement": float((best == reference[1]).mean()),
        }
    rows = [
        [
            d,
            f"{r['perplexity']:.3f}",
            f"{100 * r['change']:+.2f} % (error {100 * r['error']:.2f})",
            f"{100 * r['top1_agreement']:.2f} %",
        ]
        for d, r in results.items()
    ]
    show(
        f"{args.model} on {len(ids)} tokens of {args.text.name}",
        ["weights", "perplexity", "change", "same top token"],
        rows,
    )
    finish({"model": args.model, "text": args.text.name, "tokens": len(ids), "window": args.window, "dtypes": results})


def readers(args: argparse.Namespace, source: ModelSource) -> Iterator[tuple[str, Reader]]:
    """(name, reader of a window's logits), float32 first; each is freed before the next is loaded."""
    for dtype in ("float32", *args.dtypes):
        weights, _, kept = dtype.partition("/")
        if weights == "torch":
            yield dtype, partial(own_logits, TorchModel(source.checkpoint, dtype=kept))
            continue
        model = NumbaModel(source.checkpoint, weights, args.threads, kv_cache_dtype=kept or "auto")
        yield dtype, partial(own_logits, model)
        model.close()
    for name in args.peer:
        yield name, LlamaCppLogits(args.model, args.threads, args.window)


def own_logits(model: CausalLM, window: list[int]) -> Iterator[np.ndarray]:
    """Logits [rows, vocab] of the window's tokens, a few rows at a time: a row is the whole vocabulary."""
    pages = range(-(-len(window) // PAGE_SIZE))
    cache = model.new_cache(len(pages))
    for start in range(0, len(window), _ROWS):
        yield np.asarray(model.forward(build_rows([Part(pages, start, window[start : start + _ROWS])]), cache).logits)


def read(logits_of: Reader, windows: list[list[int]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(negative log-likelihood of each next token in nats, most likely next token) over all windows."""
    losses, best = [], []
    for window in track(windows, name, console=console):
        following = iter(window[1:])
        for some in logits_of(window):
            follow = list(islice(following, len(some)))
            logits = some[: len(follow)].astype(np.float64)
            peak = logits.max(axis=1, initial=-np.inf)
            norm = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
            losses.append(norm - logits[np.arange(len(follow)), follow])
            best.append(logits.argmax(axis=1))
    return np.concatenate(losses), np.concatenate(best)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="a plain text file")
    parser.add_argument("--skip", type=int, default=2000, help="characters to skip at its beginning (front matter)")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"])
    parser.add_argument("--peer", nargs="*", default=[], choices=["llama-cpp"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
