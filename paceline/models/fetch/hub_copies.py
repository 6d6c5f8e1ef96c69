"""Cached copies of hub models: their names, and which of them are complete.

``hf:owner/model`` names a folder of safetensors, ``hf:owner/model:Q4_K_M`` the GGUF file of that quantisation, each
with an optional ``@revision`` (branch, tag or commit). A copy is stored under its commit, so it does not change until
the model is pulled again. Not for downloads (`hub.py`); nothing here uses the network.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.disk import in_one_move
from paceline.errors import PacelineError
from paceline.models.cache_dir import PARTIAL, cache_dir
from paceline.models.fields import Fields
from paceline.models.json_file import read_json

_NAME = re.compile(r"(?P<prefix>hf:)?(?P<id>\w[\w.-]*/\w[\w.-]*)(:(?P<quant>[\w.-]+))?(@(?P<revision>\w[\w./-]*))?")
_PULLED = "pulled.json"
FOLDER_FILES = ("*.json", "model*.safetensors", "adapter_model.safetensors", "*.jinja")
"""Patterns of the files of a folder with a model or an adapter; files in its subfolders do not count."""
COMMIT = re.compile(r"[0-9a-f]{7,64}")
"""Pattern of a commit hash."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the hub: repository id, wanted quantisation (or ""), and revision."""

    id: str
    quant: str = ""
    revision: str = "main"

    @property
    def folder(self) -> Path:
        """The cache folder of the repository."""
        return cache_dir() / "hub" / self.id.replace("/", "--")

    @property
    def key(self) -> str:
        """Key of this quantisation and revision in the repository's records."""
        return f"{self.quant.upper()}@{self.revision}"

    def __str__(self) -> str:
        quant = f":{self.quant}" if self.quant else ""
        return f"hf:{self.id}{quant}" + (f"@{self.revision}" if self.revision != "main" else "")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `sha256` is None for small files, for which the hub does not list it."""

    name: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A complete copy: the name it was pulled by, the GGUF file or folder to load, its commit, its files."""

    name: str
    path: Path
    commit: str
    files: tuple[HubFile, ...]

    @property
    def num_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.num_bytes for file in self.files)


def hub_name(name: str) -> HubName | None:
    """The parts of ``[hf:]owner/model[:quant][@revision]``; None for anything else."""
    found = _NAME.fullmatch(name)
    if found is None or ".." in name:
        return None
    return HubName(found["id"], found["quant"] or "", found["revision"] or "main")


def pulled(name: HubName) -> Pulled | None:
    """The copy of `name` that was pulled last; None where there is none or files of it are missing."""
    return _as_pulled(name, _records(name.folder).get(name.key))


def all_pulled() -> list[Pulled]:
    """Every complete copy in the cache."""
    found = []
    for folder in sorted((cache_dir() / "hub").glob("*--*")):
        for key, record in _records(folder).items():
            quant, _, revision = key.partition("@")
            found.append(_as_pulled(HubName(folder.name.replace("--", "/", 1), quant, revision), record))
    return [copy for copy in found if copy]


def unfinished() -> list[tuple[Path, int]]:
    """Partly downloaded files, each with the number of bytes present."""
    parts = sorted((cache_dir() / "hub").glob(f"*--*/*/**/*{PARTIAL}"))
    return [(part.with_suffix(""), part.stat().st_size) for part in parts]


def reuse(name: HubName, commit: str, file: HubFile) -> None:
    """Reuse what other commits in the cache have of `file`, since most commits do not change weights.

    A file of the same content in a complete copy is linked; so is a complete file that an interrupted pull left, and a
    partial one is moved here. `transfer.py` then checks or completes them like any download.
    """
    target = name.folder / commit / file.name
    if file.sha256 is None or target.exists():
        return
    copies = filter(None, (_as_pulled(name, record) for record in _records(name.folder).values()))
    same = [name.folder / copy.commit / file.name for copy in copies if file in copy.files]
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # a file system without links, or a full one: the file is fetched
        if found := same or _left_whole(name, commit, file):
            os.link(found[0], target)
        else:
            _take_part(name, commit, file)


def _left_whole(name: HubName, commit: str, file: HubFile) -> list[Path]:
    """Files of the same name and size that interrupted pulls of other commits left."""
    noted = _paths(name, _records(name.folder))
    found = [folder / file.name for folder in _others(name, commit)]
    return [p for p in found if p not in noted and p.is_file() and p.stat().st_size == file.num_bytes]


def _take_part(name: HubName, commit: str, file: HubFile) -> None:
    """Move here the part of `file` that an interrupted pull of another commit left, unless that pull is running now."""
    target = name.folder / commit / file.name
    mine = target.with_name(f"{target.name}{PARTIAL}")
    for folder in _others(name, commit):
        left = folder / file.name
        part = left.with_name(f"{left.name}{PARTIAL}")
        if mine.exists() or not part.is_file():
            continue
        with suppress(Timeout), FileLock(left.with_name(f"{left.name}.lock"), timeout=0):
            for end in (".etag", ""):
                if (found := part.with_name(part.name + end)).is_file():
                    os.replace(found, mine.with_name(mine.name + end))


def _others(name: HubName, commit: str) -> list[Path]:
    """Folders of other commits, newest first."""
    folders = [p for p in name.folder.iterdir() if p.is_dir() and COMMIT.fullmatch(p.name) and p.name != commit]
    return sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)


def note_pulled(name: HubName, commit: str, load: str, files: Sequence[HubFile]) -> None:
    """Record that `files` are complete and which one (or "" for their folder) is to be loaded.

    Files of the copy that this one replaces are deleted, unless another record lists them.
    """
    path, records = name.folder / _PULLED, _records(name.folder)
    before = _paths(name, records)
    listed = {file.name: [file.num_bytes, file.sha256] for file in files}
    records[name.key] = {"commit": commit, "load": load, "files": listed}
    with in_one_move(path) as file:
        file.write_text(json.dumps(records, indent=1), encoding="utf-8")
    for old in before - _paths(name, records):
        with suppress(OSError):  # Windows does not delete files that are open
            old.unlink()


def _paths(name: HubName, records: Mapping[str, Any]) -> set[Path]:
    """The files of all complete copies."""
    copies = filter(None, (_as_pulled(name, record) for record in records.values()))
    return {name.folder / copy.commit / file.name for copy in copies for file in copy.files}


def _records(folder: Path) -> dict[str, Any]:
    """The records of a repository; empty where they are missing or damaged, so that models are pulled again."""
    path = folder / _PULLED
    try:
        return read_json(path) if path.is_file() else {}
    except PacelineError:
        return {}


def _as_pulled(name: HubName, record: object) -> Pulled | None:
    """The copy of a record; None where the record is damaged or a file is missing or has another size."""
    if not isinstance(record, Mapping):
        return None
    try:
        fields = Fields(record)
        commit, load, listed = fields.text("commit", ""), fields.text("load", ""), fields.get("files", {})
        files = tuple(HubFile(file, *fields.inner("files").list(file, (int, str, type(None)))) for file in listed)
    except (PacelineError, TypeError):
        return None
    folder = name.folder / commit
    whole = all((folder / f.name).is_file() and (folder / f.name).stat().st_size == f.num_bytes for f in files)
    return Pulled(str(name), folder / load, commit, files) if whole and COMMIT.fullmatch(commit) else None
