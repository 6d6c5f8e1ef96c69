"""Cost of drafting with a head: CPU time of a greedy chain over that of a pass of the target.

    python benchmarks/head_cost.py --dtype w8a8

Heads have random weights, since cost does not depend on their values; sizes are those of the shipped heads (8192 draft
tokens, one EAGLE-3.1 layer, two DSpark layers with a key head for each query head and a bias of rank 128, a tied MLP
speculator with a state 8/3 as wide as the target's, three blocks per Medusa head), and Falcon with two tokens in a
pass. A pass of the target runs before every draft, as in decoding, so no head finds its weights in a cache. Times are
the lower quartile of this process's CPU time on one thread, to which other programs add little. Not for choosing a
draft length.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from common import console

from paceline.models.base import NORMED
from paceline.models.heads.build import make_net
from paceline.models.heads.nets import BlockOfRows, HalfAutoregressiveNet
from paceline.models.heads.record import HeadConfig, HeadRecord, TargetPrint
from paceline.models.heads.shapes import head_shapes
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import resolve_model
from paceline.models.rows import Part, build_rows

CONTEXT, DRAFTED = 300, 8192
PAGES = range(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-tokens", type=int, default=3, help="tokens per chain")
    parser.add_argument("--repeat", type=int, default=60)
    args = parser.parse_args()
    source = resolve_model(args.model)
    target = LoadedModel(source, NumbaModel(source.checkpoint, args.dtype, num_threads=1))
    cache, last = target.model.new_cache(len(PAGES)), build_rows([Part(PAGES, CONTEXT, [7])])
    target.model.forward(build_rows([Part(PAGES, 0, [5] * CONTEXT, logits="none")]), cache)

    def run_target() -> object:
        return target.model.forward(last, cache)

    whole = milliseconds(run_target, lambda: None, args.repeat)
    console.print(f"a pass of the target: {whole:.2f} ms")
    for record in records(target.model.config, args.num_tokens):
        draft = chain(make_net(record, target, None), record.config, args.num_tokens)
        took = milliseconds(draft, run_target, args.repeat)
        console.print(
            f"{record.config.family}: {took:.2f} ms for {args.num_tokens} tokens, {took / whole:.1%} of a pass"
        )


def milliseconds(run: Callable[[], object], before: Callable[[], object], repeat: int) -> float:
    """Lower quartile of the processor time of `run`, each after `before`."""
    run()
    times = []
    for _ in range(repeat):
        before()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return sorted(times)[repeat // 4] * 1000


def records(target: Any, steps: int) -> Iterator[HeadRecord]:
    """A random head of each kind."""
    about = TargetPrint("target", target.hidden_size, target.num_hidden_layers, target.vocab_size)
    layer, n = replace(target, num_hidden_layers=1), target.num_hidden_layers
    own_keys = replace(layer, qk_norm=True, num_key_value_heads=layer.num_attention_heads)
    taps, rng = (2, n // 2, n - 3), np.random.default_rng(0)
    plain = HeadConfig("medusa", about, (NORMED,), num_steps=steps, draft_vocab_size=DRAFTED)
    for config in (
        replace(plain, family="eagle3", taps=taps, layer=layer, num_layers=1, fc_norm=True, norm_output=True),
        replace(plain, family="dspark", taps=taps, layer=own_keys, num_layers=2, markov_rank=128,
                sample_from_anchor=True, mask_token_id=0),
        replace(plain, family="mlp_speculator", inner_size=target.hidden_size * 8 // 3, tied=True, scale_input=True),
        replace(plain, block_depth=3),
        replace(plain, family="falcon", layer=layer, num_layers=1, block_tokens=2),
    ):  # fmt: skip
        tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in head_shapes(config).items()}
        yield HeadRecord(config, tensors, np.arange(DRAFTED, dtype=np.int32))


def chain(net: Any, config: HeadConfig, num_tokens: int) -> Callable[[], object]:
    """A greedy chain after the context, once the head has read it."""
    rng, width = np.random.default_rng(1), config.target.hidden_size
    states = rng.standard_normal((CONTEXT + 1, len(config.taps) * width), np.float32)
    if hasattr(net, "begin"):
        begun, token = net.begin(states[:1]), np.array([7], np.int32)
        return lambda: net.draft_chains(begun, token, num_tokens)
    if hasattr(net, "extend"):
        return chain_of_blocks(net, states, num_tokens)
    cache, places = net.new_cache(len(PAGES)), np.arange(CONTEXT)
    if hasattr(net, "inject"):
        net.inject(states[:CONTEXT], places, places, cache)
        rows = build_rows([Part(PAGES, CONTEXT, [7] * num_tokens)])
        lengths = np.full(num_tokens, CONTEXT + num_tokens, np.int32)
        rows = replace(rows, natural_lengths=lengths, num_keys=lengths)
        return lambda: net.draft_chains(rows, cache)
    read, last = build_rows([Part(PAGES, 0, [5] * CONTEXT, logits="none")]), build_rows([Part(PAGES, CONTEXT, [7])])
    net.forward(read, net.project(states[:CONTEXT]), cache)
    return lambda: net.draft_chains(last, net.project(states[CONTEXT:]), cache, num_tokens)


def chain_of_blocks(net: HalfAutoregressiveNet, states: np.ndarray, num_tokens: int) -> Callable[[], object]:
    """As `chain`, for a head that names a block of tokens in a pass and runs the rows of these before the next."""
    cache, slots, size = net.new_cache(len(PAGES)), np.arange(CONTEXT + num_tokens + 1), net.record.config.block_tokens

    def extend(tokens: np.ndarray, hidden: np.ndarray, end: int) -> None:
        places = slots[end - len(tokens) : end]
        net.extend(tokens.astype(np.int32), hidden, places, places, places - 1, cache)

    def draft() -> None:
        tokens, hidden = np.array([7]), states[CONTEXT:]
        for drafted in range(0, num_tokens, size):
            end = CONTEXT + 1 + drafted
            extend(tokens, hidden, end)
            block = slots[end - size : end]
            logits, hidden = net.draft([BlockOfRows(block, block, slots[:end])], cache)
            tokens = logits.argmax(axis=1)

    extend(np.full(CONTEXT, 5), states[:CONTEXT], CONTEXT)
    return draft


if __name__ == "__main__":
    main()
