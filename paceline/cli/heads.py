"""`paceline heads`: what draft heads there are, what a file holds, other programs' layouts, and a check of a head."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.model_argument import model_by_position
from paceline.cli.terminal.streams import messages, output, progress_bars, show_table
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.models.heads.layouts.base import Reading, TargetTables
    from paceline.models.heads.record import HeadRecord
    from paceline.models.heads.registry import HeadRef
    from paceline.models.resolve import ModelSource

app = typer.Typer(help="Look at draft heads, convert them, check them.", no_args_is_help=True)

_PROGRAMS = ("vllm", "sglang", "llama.cpp", "paceline")
_SGLANG = {"eagle3": "sglang", "eagle": "eagle", "dflash": "dflash", "dspark": "dflash"}
"""Layout of files that SGLang reads, by family; vLLM reads this project's own."""
_NEVER_IN_VLLM = ("hydra", "blockwise", "falcon")
"""Families that no vLLM runs."""
_READING = "Reading files that leave things open"

Head = Annotated[str, typer.Argument(help="Name such as smollm2-135m/eagle3, folder, file, or hub id.")]
Target = Annotated[str | None, o.option(o.MACHINE, "--model", "-m", help="The model it drafts for.")]
Taps = Annotated[
    str | None, o.option(_READING, "--taps", help="What layer numbers mean: entering or leaving; default by producer.")
]
NormOutput = Annotated[
    bool | None, o.option(_READING, "--norm-output/--no-norm-output", help="Whether the normed state is fed back.")
]
AnyWeights = Annotated[
    bool, o.option(_READING, "--any-weights", help="Accept a head of other weights of the same sizes.")
]


@app.callback()
def group() -> None:
    """Look at draft heads, convert them, check them."""


@app.command("list")
@model_by_position
def list_heads(model: Target = None, as_json: o.Json = False) -> None:
    """List the heads that have a name, or those made for one model.

    Examples:

        paceline heads list

        paceline heads list -m smollm2-135m --json
    """
    from paceline.models.heads.prediction import has_layer
    from paceline.models.heads.registry import all_heads, find_heads, user_heads

    source = None if model is None else _source(model)
    found = all_heads() if source is None else find_heads(source)
    if as_json:
        print(json.dumps([_row(ref) for ref in found]))
        return
    table = Table("name", "family", "target", "where")
    for ref in found:
        family = "damaged" if ref.problem else ref.family or "not said"
        table.add_row(ref.name, family, ref.target.name if ref.target else "not said", ref.place)
    for ref in found:
        if ref.problem:
            messages.print(f"{ref.name}: {ref.problem}", soft_wrap=True, markup=False)
    if found:
        show_table(table, output)
    else:
        print("No heads" + (f" for {model}" if model else "") + ": paceline train head makes one.")
    if source is not None and has_layer(source):
        messages.print("The model brings a prediction layer: --draft mtp drafts with it.", soft_wrap=True)
    messages.print(f"your own go to {user_heads()}", style="dim", soft_wrap=True)


@app.command()
def inspect(
    head: Head,
    model: Target = None,
    taps: Taps = None,
    norm_output: NormOutput = None,
    any_weights: AnyWeights = False,
    as_json: o.Json = False,
) -> None:
    """Print what a head computes and reads: taps, norms, draft vocabulary, residual, tables, and its card.

    These are settings that programs get wrong in silence. What the file leaves open, and how that was read, is told.

    Examples:

        paceline heads inspect smollm2-135m/eagle3

        paceline heads inspect ./downloaded-head -m target.gguf --taps leaving
    """
    from paceline.models.heads.conventions import conventions
    from paceline.models.heads.files import layout_of, read_files
    from paceline.models.heads.registry import head_path
    from paceline.models.heads.self_check import KEY

    record = _load(head, model, taps, norm_output, any_weights)
    pairs = [("layout", layout_of(read_files(head_path(head))).name), *conventions(record)]
    if as_json:
        print(json.dumps({"conventions": dict(pairs), "notes": record.notes, "card": record.card}, default=str))
        return
    table = Table("setting", "value", title=head, title_justify="left")
    for name, value in pairs:
        table.add_row(name, value)
    show_table(table, output)
    for note in record.notes:
        print(f"note: {note}")
    for name, value in record.card.items():
        if name == KEY and isinstance(value, dict) and isinstance(value.get("acceptance"), float):
            value = f"{value['acceptance']:.1%} of first drafted tokens on a stored text"
        print(f"{name}: {json.dumps(value, default=str)}")


@app.command()
def convert(
    head: Head,
    to: Annotated[str, typer.Option("--to", help=f"For which program: {', '.join(_PROGRAMS)}.")],
    destination: Annotated[Path, typer.Option("--output", "-o", help="Folder, or .gguf file for llama.cpp.")],
    model: Target = None,
    verifier: Annotated[
        str | None, typer.Option("--verifier", help="What vLLM shall load as the target: hub id or folder.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16, or int8 (paceline only).")] = "bfloat16",
    one_norm: Annotated[
        bool, typer.Option("--one-norm", help="EAGLE-3.1 made EAGLE-3, for llama.cpp and SGLang; it drafts worse.")
    ] = False,
    taps: Taps = None,
    norm_output: NormOutput = None,
    any_weights: AnyWeights = False,
) -> None:
    """Write a head for another program, or one of another program for this one.

    Programs cannot all share the target's embeddings and output head, so copies go in: name the target. llama.cpp also
    needs its vocabulary, so there the target is a GGUF file. --one-norm runs the target over a short text.

    Examples:

        paceline heads convert smollm2-135m/eagle3 --to vllm -m smollm2-135m --verifier HuggingFaceTB/\
SmolLM2-135M-Instruct -o eagle3-vllm

        paceline heads convert smollm2-135m/eagle3 --to llama.cpp --one-norm -m smollm2-135m -o eagle3.gguf

        paceline heads convert smollm2-135m/dspark --to llama.cpp -m smollm2-135m -o dspark.gguf

        paceline heads convert ./downloaded-head --to paceline -m target.gguf --dtype int8 -o head
    """
    from paceline.disk import writing
    from paceline.models.heads.layouts.speculators import VERIFIER

    if to not in _PROGRAMS:
        raise InvalidParameter("to", f"{to!r} is not known", f"choose one of: {', '.join(_PROGRAMS)}")
    if dtype not in ("float32", "bfloat16", "int8") or (dtype == "int8" and to != "paceline"):
        known = "float32, bfloat16 or int8" if to == "paceline" else "float32 or bfloat16"
        raise InvalidParameter("dtype", f"{dtype!r} is not what {to} reads", f"use {known}")
    record = _load(head, model, taps, norm_output, any_weights)
    if to == "sglang" and record.config.family not in _SGLANG:
        problem = f"is sglang, for which no {record.config.family} heads are written"
        raise InvalidParameter("to", problem, f"use a head of a family of these: {', '.join(_SGLANG)}")
    if to == "vllm" and record.config.family in _NEVER_IN_VLLM:
        problem = f"is vllm, which runs no {record.config.family} heads"
        raise InvalidParameter("to", problem, "draft with it here, or train eagle3")
    scales = record.config.family in ("dflash", "dspark") and record.config.embedding_scale != 1.0
    if to in ("vllm", "sglang") and scales:
        problem = f"is {to}, whose files of these heads cannot say that a block reads multiplied embeddings"
        raise InvalidParameter("to", problem, "draft with it here, or train eagle3")
    if one_norm:
        record = _with_one_norm(record, model)
    if to != "paceline" and model is None:
        raise InvalidParameter("model", f"is missing, whose tables go into a head for {to}", "name the target (-m)")
    if to != "paceline" and verifier is not None:
        record = replace(record, card={**record.card, VERIFIER: verifier})
    if to == "vllm" and record.config.family in ("medusa", "mlp_speculator"):
        messages.print(f"vLLM 0.33 no longer runs {record.config.family} heads; older ones read this", soft_wrap=True)
    with writing("output", destination):
        print(_written(record, destination, to, dtype, model))


def _written(record: "HeadRecord", destination: Path, to: str, dtype: str, model: str | None) -> Path:
    """Write a head for the program `to`, with tables of `model` if that program needs them; returns the path."""
    from paceline.models.heads.files import save_head
    from paceline.models.heads.whole_vocabulary import naming_all

    if model is None or to == "paceline":
        return save_head(record, destination, storage=dtype)  # type: ignore[arg-type]
    source = _source(model)
    if to == "llama.cpp":
        return _to_gguf(record, destination, source, dtype)
    layout = _SGLANG[record.config.family] if to == "sglang" else None
    if layout == "dflash":
        record = naming_all(record)
    return save_head(record, destination, storage=dtype, layout=layout, tables=_tables(source))  # type: ignore[arg-type]


@app.command()
def verify(
    head: Head,
    model: Annotated[str, o.option(o.MACHINE, "--model", "-m", help="The model it drafts for.")] = o.DEFAULT_MODEL,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    taps: Taps = None,
    norm_output: NormOutput = None,
    any_weights: AnyWeights = False,
    store: Annotated[bool, typer.Option("--store", help="Measure anew, and store text and share in the card.")] = False,
    as_json: o.Json = False,
) -> None:
    """Load a head strictly and let it draft over the text in its card; exit code 1 when far too few tokens are right.

    Every tensor must be known and of the right shape, the target must be the one it was trained for. The text is the
    target's own; --store has it written, which whoever releases a head does once.

    Examples:

        paceline heads verify smollm2-135m/eagle3

        paceline heads verify ./head -m target.gguf --store
    """
    from paceline.config import EngineConfig
    from paceline.disk import writing
    from paceline.engine.setup.load import load
    from paceline.models.heads.build import make_net
    from paceline.models.heads.files import store_in_card
    from paceline.models.heads.registry import head_path
    from paceline.models.heads.self_check import KEY, make_check, own_opening, own_text, run_self_check

    config = EngineConfig(dtype=dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    with progress_bars() as progress:
        loaded = load(model, config, progress)
        record = _load(head, loaded.source, taps, norm_output, any_weights)
        net, card = make_net(record, loaded), record.card
        if store:
            opening = own_opening(loaded.source.tokenizer)
            made = make_check(loaded.model, net, own_text(loaded.model, opening), len(opening))
            with writing("head", head_path(head)):
                store_in_card(head_path(head), KEY, made)
            card = {KEY: made}
        check = run_self_check(loaded.model, net, card)
    passed = check is None or check.passed
    if as_json:
        print(json.dumps({"loaded": True, "check": asdict(check) if check else None, "passed": passed}))
    else:
        print(f"{head}: every tensor is there, the target is the one it was trained for.")
        print(str(check) if check else "Its card stores no text to check it with.")
    loaded.close()
    if not passed:
        raise typer.Exit(1)


def _row(ref: "HeadRef") -> dict[str, Any]:
    target = asdict(ref.target) if ref.target else None
    return {"name": ref.name, "family": ref.family, "place": ref.place, "path": str(ref.path), "target": target,
            "card": dict(ref.card), "problem": ref.problem}  # fmt: skip


def _load(head: str, model: "str | ModelSource | None", taps: str | None, norm_output: bool | None,
          any_weights: bool) -> "HeadRecord":  # fmt: skip
    from paceline.models.heads.registry import load_head

    source = _source(model) if isinstance(model, str) else model
    return load_head(head, source, reading=_reading(taps, norm_output), any_weights=any_weights)


def _reading(taps: str | None, norm_output: bool | None) -> "Reading":
    from paceline.models.heads.layouts.base import Reading

    if taps not in (None, "entering", "leaving"):
        raise InvalidParameter("taps", f"{taps!r} is not known", "say entering or leaving")
    return Reading(convention=taps, norm_output=norm_output)  # type: ignore[arg-type]


def _source(model: str) -> "ModelSource":
    from paceline.models.resolve import resolve_model

    with progress_bars() as progress:
        return resolve_model(model, progress=lambda done, total: progress("downloading", done, total))


def _with_one_norm(record: "HeadRecord", model: str | None) -> "HeadRecord":
    from paceline.config import EngineConfig
    from paceline.engine.setup.load import load
    from paceline.models.heads.one_norm import with_one_norm
    from paceline.models.heads.self_check import own_opening

    if model is None:
        raise InvalidParameter("model", "is missing, whose hidden states are measured", "name the target (-m)")
    with progress_bars() as progress:
        loaded = load(model, EngineConfig(), progress)
    made = with_one_norm(record, loaded.model, own_opening(loaded.source.tokenizer))
    loaded.close()
    return made


def _tables(source: "ModelSource") -> "TargetTables":
    from paceline.models.heads.layouts.base import TargetTables

    checkpoint = source.checkpoint
    embedding = checkpoint.tensor("model.embed_tokens.weight")
    head = embedding if checkpoint.config.tie_word_embeddings else checkpoint.tensor("lm_head.weight")
    return TargetTables(embedding, head)


def _to_gguf(record: "HeadRecord", destination: Path, source: "ModelSource", dtype: str) -> Path:
    from paceline.models.heads.llama_cpp import write_gguf

    path = destination if destination.suffix == ".gguf" else destination / f"{record.config.family}.gguf"
    metadata: Any = getattr(source.checkpoint, "metadata", {})
    return write_gguf(record, path, metadata, _tables(source), "F32" if dtype == "float32" else "BF16")
