"""`paceline theory intensity`: operations per byte of prefill chunks, decodes, and both in one pass."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.theory.output import AsJson, check_most, examples, print_json, print_table, usage_errors
from paceline.theory.checks import check_count
from paceline.theory.intensity import (
    A6000,
    LLAMA_13B,
    intensity_chart,
    intensity_table,
    ridge,
    saturating_chunk,
    saturating_decodes,
)
from paceline.theory.long_context import Machine, Shape
from paceline.theory.plots import draw

EXAMPLES = examples(
    "intensity",
    "intensity --hidden-size 6656 --layers 60 --bandwidth 2.039e12 --peak 312e12",
    "intensity --queries-per-key 8 --context 4096 --chunk 512 -o intensity.png",
)

_NUM_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MOST_ROWS = 1 << 20
"""Most rows of a pass that are computed one by one, in ten seconds."""


def intensity(
    rows: Annotated[list[int] | None, typer.Option("--rows", "-n", help="Rows of a line; repeatable.")] = None,
    chunk: Annotated[int, typer.Option(help="Prompt tokens of the chunk beside decodes.")] = 256,
    context: Annotated[int, typer.Option(help="Tokens that a decoding request has read.")] = 1024,
    hidden_size: Annotated[int, typer.Option(help="Of the model.")] = LLAMA_13B.hidden_size,
    layers: Annotated[int, typer.Option(help="Of the model.")] = LLAMA_13B.num_layers,
    queries_per_key: Annotated[int, typer.Option(help="Query heads that share a key head.")] = 1,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second, all chips.")] = A6000.bytes_per_second,
    peak: Annotated[float, typer.Option(help="Operations per second, all chips.")] = A6000.operations_per_second,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Plot here: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say at how many rows a pass is bound by arithmetic instead of by reading memory.

    Two bytes per number; weights are read once a pass, keys and values once a request. The defaults are SARATHI's
    LLaMA-13B on an A6000.
    """
    with usage_errors():
        check_count("chunk", chunk, least=1)
        check_most("chunk", chunk, _MOST_ROWS)
        check_most("rows", max(rows or _NUM_ROWS), _MOST_ROWS)
        shape, machine = Shape(hidden_size, layers, queries_per_key), Machine(bandwidth, peak)
        table = intensity_table(shape, sorted(rows or _NUM_ROWS), chunk, context)
        alone, decodes = saturating_chunk(shape, machine), saturating_decodes(shape, machine, context)
        bounds = {"ridge": ridge(machine), "saturating_chunk": alone, "saturating_decodes": decodes}
        if output is not None:
            draw(intensity_chart(table, machine), output)
    if as_json:
        print_json(asdict(table) | bounds)
        return
    print_table(table)
    gib = shape.cache_bytes_per_token * (context + 1) / 2**30
    typer.echo(f"the machine does {ridge(machine):.4g} operations per byte")
    typer.echo(f"bound by arithmetic from a chunk of {'over a million' if alone is None else alone} tokens on")
    if decodes is None:
        typer.echo(f"decodes after {context} tokens never are: each reads {gib:.2g} GiB of its own keys and values")
    else:
        typer.echo(
            f"and from {decodes} decodes after {context} tokens on, with {decodes * gib:.3g} GiB of keys and values"
        )
