"""`paceline models`: the built-in names, what was pulled, and what lies in the cache."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.terminal.streams import messages, output, show_table
from paceline.errors import PacelineError
from paceline.models.cache_dir import cache_dir
from paceline.models.cache_use import delete, unused
from paceline.models.fetch.download import BUILTIN_MODELS, weights_path
from paceline.models.fetch.hub_copies import all_pulled, unfinished
from paceline.models.numba_executor.conversions import of_other_versions

_REMOVE = "paceline models --remove-unread"
_LONG = 30
"""Days without use after which parts of the cache are mentioned."""


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    removes: Annotated[
        bool, typer.Option("--remove-unread", help="Delete converted weights that this version does not read.")
    ] = False,
    remove_unused: Annotated[
        int | None,
        typer.Option(
            "--remove-unused",
            min=1,
            metavar="DAYS",
            help="Delete converted weights and kernels not used for so many days; they are made again when needed.",
        ),
    ] = None,
) -> None:
    """List built-in models, those that were pulled, and the cache.

    Any GGUF file, safetensors folder or hub id works too, of every family in docs/families.md.

    Examples:

        paceline models

        paceline models --json

        paceline models --remove-unread

        paceline models --remove-unused 30
    """
    if removes:
        _remove(of_other_versions(cache_dir()), "converted weights")
    if remove_unused is not None:
        _remove(unused(cache_dir(), remove_unused), f"what was not used for {remove_unused} days")
    rows = [
        {"name": name, "licence": model.licence, "bytes": model.num_bytes, "downloaded": weights_path(model).exists()}
        for name, model in BUILTIN_MODELS.items()
    ]
    copies = [{"name": copy.name, "path": str(copy.path), "bytes": copy.num_bytes} for copy in all_pulled()]
    parts = [{"path": str(path), "bytes": num_bytes} for path, num_bytes in unfinished()]
    cache = {"folder": str(cache_dir()), "bytes": _size(cache_dir())}
    unread = [{"path": str(path), "bytes": _size(path)} for path in of_other_versions(cache_dir())]
    old = {"days": _LONG, "bytes": sum(map(_size, unused(cache_dir(), _LONG)))}
    if as_json:
        print(json.dumps({"models": rows, "pulled": copies, "unfinished": parts, "cache": cache, "unread": unread,
                          "unused": old}))  # fmt: skip
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
    if old["bytes"]:
        how = f"paceline models --remove-unused {_LONG}"
        print(f"{_megabytes(old['bytes'])} of it were not used for {_LONG} days; to delete them: {how}")


def _remove(paths: Sequence[Path], what: str) -> None:
    """Delete parts of the cache. Raises PacelineError for one that cannot be deleted."""
    num_bytes = 0
    for path in paths:
        size = _size(path)
        try:
            delete(path)
        except OSError as error:
            raise PacelineError(f"{path}: cannot be deleted ({error.strerror}); delete it yourself") from error
        num_bytes += size
    messages.print(f"{_megabytes(num_bytes)} of {what} deleted")


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"


def _size(place: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [place] if place.is_file() else place.rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())
