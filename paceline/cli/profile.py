"""`paceline profile`: what passes of a language model cost, for the planner, and how far off that is."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli.terminal.streams import output as standard_output
from paceline.cli.terminal.streams import progress_bars, show_table
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.models.architecture.config import ModelConfig
    from paceline.placement import ModelProfile
    from paceline.placement.profiling import Comparison


def profile(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="The model's config.json, its folder, or a built-in name, GGUF file or hub id."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="A data sheet: a name (h100, a100-80gb, l4, ...) or a file.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option("--tuned", help="A profile of `paceline tune --output`, in place of --device.")
    ] = None,
    benchmark: Annotated[
        list[Path] | None,
        typer.Option("--benchmark", help="Results of vllm bench serve or guidellm, to be scaled by; repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Of the profile; the model's by default.")] = None,
    weight_bytes: Annotated[float, typer.Option("--weight-bytes", help="Of one parameter.")] = 2.0,
    kv_bytes: Annotated[float, typer.Option("--kv-bytes", help="Of one number in keys and values.")] = 2.0,
    seats: Annotated[int, typer.Option("--seats", help="Requests that an engine runs at once.")] = 256,
    token_budget: Annotated[
        int | None, typer.Option("--token-budget", help="Rows of a step; 2048, with --tuned what was tuned, or 512.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the profiles here, for paceline place.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Make a profile that `paceline place --profiles` reads, from a data sheet or from measurements.

    With --device, times are those of the roofline for every split over a node. With --tuned, they are what was
    measured on one device. --benchmark says how far off either is, and scales it to what was measured.

    Examples:

        paceline profile llama-8b/config.json --device h100 -o profiles.json

        paceline profile llama-8b/ --device a100-80gb --benchmark c1.json --benchmark c64.json -o profiles.json

        paceline profile smollm2-135m --tuned tuned.json --weight-bytes 1

        paceline place --case case.yaml --profiles profiles.json
    """
    from paceline.cli.options.case import check_outputs
    from paceline.placement.profiling import ModelWork, compared, read_all_benchmarks
    from paceline.placement.profiling.compare import scale_of, typical_error

    check_outputs(output, None)
    if model is None:
        raise InvalidParameter("model", "is missing", "name it, e.g. paceline profile llama-8b/config.json")
    called, config = _config(model)
    called = name or called
    work = ModelWork.of(config, weight_bytes, kv_bytes)
    made, where = _made(called, work, device, tuned, seats, token_budget)
    runs = read_all_benchmarks(benchmark or ())
    tokens = made.entries[min(made.entries, key=lambda split: split.num_devices)].tokens
    assert tokens is not None
    found, scale = compared(tokens, runs), 1.0
    if runs:
        scale = scale_of(tokens, runs)
        made = _scaled(made, scale)
    record = {called: [_entry(split, stages) for split, stages in sorted(made.entries.items())]}
    errors = {"error": typical_error(found), "error_of_held_out_runs": typical_error(found, held_out=True)}
    if output is not None:
        output.write_text(json.dumps(record, indent=1) + "\n")
    if as_json:
        runs_record = [{"run": c.run.source, "measured": c.run.per_token, "predicted": c.predicted} for c in found]
        print(json.dumps({"profiles": record, "source": where, "scale": scale, "runs": runs_record, **errors}))
        return
    show_table(_splits(made), standard_output)
    if found:
        show_table(_runs(found), standard_output)
    print(_verdict(where, found, scale, is_measured=tuned is not None))


def _config(model: str) -> "tuple[str, ModelConfig]":
    """(default name of the model, its config), without reading weights."""
    from paceline.models.files.adapter_files import is_adapter
    from paceline.models.resolve import resolve_config
    from paceline.placement.profiling.model_work import read_config

    path = Path(model).expanduser()
    if (path.is_dir() and not is_adapter(path)) or path.suffix == ".json":
        return (path.resolve() if path.is_dir() else path.resolve().parent).name or "model", read_config(path)
    with progress_bars() as progress:
        config = resolve_config(model, progress=lambda done, total: progress(f"fetching {model}", done, total))
    return path.stem if path.is_file() else model.removeprefix("hf:").split("/")[-1], config


def _made(
    name: str, work: Any, device: str | None, tuned: Path | None, seats: int, token_budget: int | None
) -> "tuple[ModelProfile, str]":
    """(profile, description of its source). Raises InvalidParameter unless one of `device` and `tuned` is given."""
    from paceline.placement import ModelProfile, ParallelConfig, Stages
    from paceline.placement.profiling import profile_from_sheet, read_device
    from paceline.placement.profiling.sheet import lasting_bytes
    from paceline.placement.tokens import TokenProfile
    from paceline.scheduling.profile import Profile

    if (device is None) == (tuned is None):
        raise InvalidParameter("device", "give --device or --tuned, one of them", "e.g. --device h100")
    if device is not None:
        made = profile_from_sheet(
            name, work, read_device(device), seats, 2048 if token_budget is None else token_budget
        )
        return made, f"the data sheet of {device}"
    assert tuned is not None
    budget = {} if token_budget is None else {"token_budget": token_budget}
    tokens = TokenProfile.of_tuned(Profile.read(tuned), seats=seats, **budget)
    weights = (lasting_bytes(work, seats),)
    stages = Stages((tokens.pass_seconds(1),), weights, tokens=tokens, kv_bytes=work.bytes_per_token)
    return ModelProfile(name, {ParallelConfig(): stages}), f"measured passes ({tuned})"


def _scaled(made: "ModelProfile", factor: float) -> "ModelProfile":
    from dataclasses import replace

    from paceline.placement import ModelProfile

    entries = {}
    for split, stages in made.entries.items():
        assert stages.tokens is not None
        latency = tuple(factor * seconds for seconds in stages.latency)
        entries[split] = replace(stages, latency=latency, tokens=stages.tokens.scaled(factor))
    return ModelProfile(made.name, entries)


def _entry(split: Any, stages: Any) -> dict[str, Any]:
    """A profile entry of a case file."""
    head = {"op": split.tensor, "pp": split.pipeline, "weight_mem": list(stages.weight_mem)}
    return head | {"kv_bytes": stages.kv_bytes, "tokens": stages.tokens.record()}


def _splits(made: "ModelProfile") -> Table:
    table = Table("tensor x pipeline", "GB per device", "ms, 1 row", "ms, 64 requests", "ms, 512 prompt rows")
    table.title, table.title_justify = f"A pass of {made.name} after 1,024 tokens", "left"
    for split, stages in sorted(made.entries.items()):
        tokens = stages.tokens
        assert tokens is not None
        times = tokens.pass_seconds(1, 1, 1024), tokens.pass_seconds(64, 64, 1024), tokens.pass_seconds(0, 1, 0, 512)
        shown = [f"{1000 * seconds:.2f}" for seconds in times]
        table.add_row(f"{split.tensor} x {split.pipeline}", f"{max(stages.weight_mem) / 1e9:.2f}", *shown)
    return table


def _runs(found: "list[Comparison]") -> Table:
    table = Table("run", "at once", "measured ms per token", "predicted", "off by", "off by, held out")
    table.title, table.title_justify = "Against what was measured, before scaling", "left"
    for c in found:
        held = "-" if c.held_out_error is None else f"{c.held_out_error:+.0%}"
        numbers = f"{c.run.concurrency:.1f}", f"{1000 * c.run.per_token:.2f}", f"{1000 * c.predicted:.2f}"
        table.add_row(c.run.source, *numbers, f"{c.error:+.0%}", held)
    return table


def _verdict(where: str, found: "list[Comparison]", scale: float, is_measured: bool) -> str:
    """A line with the source of the times and their error."""
    from paceline.placement.profiling.compare import typical_error

    if not found and is_measured:
        return f"from {where}; not compared with the times of requests (--benchmark)"
    if not found:
        return f"from {where}; nothing was measured to hold it against: times may be off by a factor of 2 (--benchmark)"
    held = typical_error(found, held_out=True)
    after = "no run was left to test that" if held is None else f"then off by {held:.0%} on runs held out in turn"
    return f"from {where}: off by {typical_error(found):.0%} on average; scaled by {scale:.2f}, {after}"
