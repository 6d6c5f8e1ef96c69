"""`paceline models`: the built-in names, what was pulled, and what lies in the cache."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.terminal import messages, output, show_table
from paceline.errors import PacelineError
from paceline.models.cache_dir import cache_dir
from paceline.models.fetch.download import BUILTIN_MODELS, weights_path
from paceline.models.fetch.hub_copies import all_pulled, unfinished
from paceline.models.numba_executor.conversions import of_other_versions

_REMOVE = "paceline models --remove-unread"


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    removes: Annotated[
        bool, typer.Option("--remove-unread", help="Delete converted weights that this version does not read.")
    ] = False,
) -> None:
    """List built-in models, those that were pulled, and the cache.

    Any GGUF file, safetensors folder or hub id works too, of every family in docs/families.md.

    Examples:

        paceline models

        paceline models --json

        paceline models --remove-unread
    """
    if removes:
        _remove_unread()
    rows = [
        {"name": name, "licence": model.licence, "bytes": model.num_bytes, "downloaded": weights_path(model).exists()}
        for name, model in BUILTIN_MODELS.items()
    ]
    copies = [{"name": copy.name, "path": str(copy.path), "bytes": copy.num_bytes} for copy in all_pulled()]
    parts = [{"path": str(path), "bytes": num_bytes} for path, num_bytes in unfinished()]
    cache = {"folder": str(cache_dir()), "bytes": _size(cache_dir())}
    unread = [{"path": str(path), "bytes": _size(path)} for path in of_other_versions(cache_dir())]
    if as_json:
        print(json.dumps({"models": rows, "pulled": copies, "unfinished": parts, "cache": cache, "unread": unread}))
        return
    table = Table("name", "licence", "size", "downloaded")
    for row in rows:
        table.add_row(row["name"], row["licence"], _megabytes(row["bytes"]), "yes" if row["downloaded"] else "no")
    for copy in copies:
        table.add_row(copy["name"], "", _megabytes(copy["bytes"]), "yes")
    for part in parts:
        table.add_row(Path(part["path"]).name, "", _megabytes(part["bytes"]), "so far; pull it again to go on")
    show_table(table, output)
    print(f"cache: {cache['folder']}, {_megabytes(cache['bytes'])} (downloads, converted weights, kernels)")
    if unread:
        size = _megabytes(sum(each["bytes"] for each in unread))
        print(f"{size} of it are weights that another version of paceline converted; to delete them: {_REMOVE}")


def _remove_unread() -> None:
    """Delete what other versions converted. Raises PacelineError for a folder that cannot be deleted."""
    num_bytes = 0
    for folder in of_other_versions(cache_dir()):
        size = _size(folder)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise PacelineError(f"{folder}: cannot be deleted ({error.strerror}); delete it yourself") from error
        num_bytes += size
    messages.print(f"{_megabytes(num_bytes)} of converted weights deleted")


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
