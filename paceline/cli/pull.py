"""`paceline pull`: models into the cache, before they are used or to have their latest files."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.terminal.streams import messages, output, progress_bars
from paceline.errors import ModelNotFound
from paceline.models.fetch.download import BUILTIN_MODELS, fetch_builtin
from paceline.models.fetch.hub_copies import hub_name
from paceline.types import Progress

Names = Annotated[list[str], typer.Argument(help="hf:owner/model[:quantisation][@revision], or a built-in name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a line each.")]


def pull(names: Names, as_json: AsJson = False) -> None:
    """Download models.

    `hf:owner/model` is a folder of safetensors, or of a repository of GGUF files the Q4_K_M one; `:Q8_0` after it
    takes another. A download that was interrupted goes on where it stopped, and what arrives is checked against the
    SHA-256 that the hub publishes. HF_TOKEN and HF_ENDPOINT are heeded.

    Then use the same name wherever a model is asked for; nothing is asked of the hub again until the next pull.

    Examples:

        paceline pull hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M

        paceline generate -m hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M "Reverse a list in Python."
    """
    found = []
    for name in names:
        with progress_bars() as progress:
            found.append(_pull(name, lambda done, total, name=name: progress(name, done, total)))
        if not as_json:
            output.print(found[-1]["path"], soft_wrap=True)
            messages.print(f"{name}: {found[-1]['bytes'] / 1e6:.0f} MB", soft_wrap=True)
    if as_json:
        print(json.dumps(found))


def _pull(name: str, progress: Progress) -> dict[str, Any]:
    if name in BUILTIN_MODELS:
        path = fetch_builtin(BUILTIN_MODELS[name], progress)
        return _about(name, path, BUILTIN_MODELS[name].num_bytes)
    hub = hub_name(name)
    if hub is None:
        raise ModelNotFound(
            f"model {name!r}: not of the form hf:owner/model[:quantisation][@revision], and no built-in name "
            f"({', '.join(BUILTIN_MODELS)})"
        )
    from paceline.models.fetch.hub import pull as pull_from_hub

    copy = pull_from_hub(hub, progress)
    return _about(copy.name, copy.path, copy.num_bytes) | {"commit": copy.commit}


def _about(name: str, path: Path, num_bytes: int) -> dict[str, Any]:
    return {"name": name, "path": str(path), "bytes": num_bytes}
