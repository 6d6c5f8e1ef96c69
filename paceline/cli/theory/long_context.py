"""`paceline theory long-context`: what a draft that reads part of the context brings, by bytes and operations alone."""

from dataclasses import asdict
from typing import Annotated

import typer

from paceline.cli.theory.output import (
    MOST_LEVELS,
    MOST_REQUESTS,
    AsJson,
    check_most,
    examples,
    print_json,
    print_table,
    usage_errors,
)
from paceline.theory.checks import check_count
from paceline.theory.long_context import Machine, Shape, batch_gain, gains_table

EXAMPLES = examples(
    "long-context",
    "long-context --alpha 0.7 --draft-layers 8 --window 512 --context 16000",
    "long-context --queries-per-key 4 --bandwidth 3.35e12 --peak 990e12 --requests 64 --json",
    "long-context --context 1000 --context 64000 --mixed",
)

_CONTEXTS = (1024, 4096, 8000, 16000, 32000)
_A100 = Machine(1.555e12, 312e12)
_NUM_A100 = 8


def long_context(
    context: Annotated[list[int] | None, typer.Option(help="Tokens that a request has read; repeatable.")] = None,
    requests: Annotated[int, typer.Option(help="Requests in the batch, of each context with --mixed.")] = 32,
    mixed: Annotated[bool, typer.Option("--mixed", help="One batch of all contexts, not one of each.")] = False,
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Acceptance rate.")] = 0.82,
    hidden_size: Annotated[int, typer.Option(help="Of the target and its draft.")] = 4096,
    layers: Annotated[int, typer.Option(help="Of the target.")] = 32,
    draft_layers: Annotated[int | None, typer.Option(help="Of the draft; as the target when left out.")] = None,
    queries_per_key: Annotated[int, typer.Option(help="Query heads that share a key head, in both.")] = 1,
    window: Annotated[int, typer.Option(help="Keys that the draft reads of a request, sinks included.")] = 512,
    shared_memory: Annotated[
        bool, typer.Option("--shared-memory", help="All layers of the draft share one feedback memory (SPIRe).")
    ] = False,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second, all chips.")] = _NUM_A100 * _A100.bytes_per_second,
    peak: Annotated[float, typer.Option(help="Operations per second, all chips.")] = _NUM_A100
    * _A100.operations_per_second,
    max_length: Annotated[int, typer.Option("--max-length", help="Longest draft that is considered.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Say what a draft that reads part of the context brings, by bytes and operations alone: an upper bound.

    This is the model by which SPIRe chooses its drafts, with the layers of MagicDec and two bytes per number. With
    all layers the draft is the target over fewer keys (sparse_cache), with fewer it is one like SPIRe's. The defaults
    are a model of 7 billion weights on eight A100.
    """
    with usage_errors():
        check_count("requests", requests, 1)
        check_most("requests", requests, MOST_REQUESTS)
        check_most("max_length", max_length, MOST_LEVELS)
        target = Shape(hidden_size, layers, queries_per_key)
        draft_depth = layers if draft_layers is None else draft_layers
        draft = Shape(hidden_size, draft_depth, queries_per_key, window, shared_memory)
        contexts = context or _CONTEXTS
        batches = [[one for one in contexts for _ in range(requests)]] if mixed else [[n] * requests for n in contexts]
        machine = Machine(bandwidth, peak)
        gains = [batch_gain(alpha, target, draft, batch, machine, max_length) for batch in batches]
    if as_json:
        print_json([asdict(gain) for gain in gains])
        return
    print_table(gains_table(gains))
