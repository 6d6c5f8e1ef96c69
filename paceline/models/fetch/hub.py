"""Models by hub id: lists the files of a repository, chooses those to load, and downloads them into the cache.

Uses the hub's HTTP API (``/api/models/ID/revision/REVISION?blobs=true`` lists files with sizes and SHA-256,
``/ID/resolve/COMMIT/FILE`` returns one), at HF_ENDPOINT where that is set, with the token in HF_TOKEN. Not for the
transfer of a file (`transfer.py`) or the layout of the cache (`hub_copies.py`).
"""

import os
import re
import urllib.error
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import quote

from paceline.errors import CorruptWeights, DownloadFailed, ModelNotFound, UnsupportedModel
from paceline.models.fetch.hub_copies import COMMIT, FOLDER_FILES, HubFile, HubName, Pulled, note_pulled, reuse
from paceline.models.fetch.transfer import Remote, fetch_file, read_url
from paceline.models.fields import Fields, is_text
from paceline.models.files.gguf_parts import part_names
from paceline.models.json_file import parse_object
from paceline.types import Progress

_PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")
"""Quantisations of a GGUF repository that are tried, in order, when none is named."""
_NO_MODELS = ("mmproj", "imatrix")
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf)")
_QUANT = re.compile(r"(?:UD-)?I?Q\d\w*|B?F(?:16|32)|MXFP4\w*|TQ\d\w*", re.IGNORECASE)


def pull(name: HubName, progress: Progress | None = None) -> Pulled:
    """Download the current state of `name` from the hub; files that are in the cache are not fetched again.

    Args:
        progress: called with (bytes present, bytes in total).

    Raises:
        ModelNotFound: the hub has no such repository, revision or quantisation.
        DownloadFailed: a file cannot be fetched, or differs from what the hub lists.
    """
    commit, files = _listing(name)
    chosen, load = _choose(name, files)
    folder = name.folder / commit
    total, done = sum(file.num_bytes for file in chosen), 0
    try:
        for file in chosen:
            reuse(name, commit, file)
            _fetch(name, commit, file, partial(_report, progress, done, total))
            done += file.num_bytes
            _report(progress, done, total, 0, 0)
        note_pulled(name, commit, load, chosen)
    except OSError as error:
        raise DownloadFailed(
            f"{name}: cannot be stored in {folder} ({error}); free {total / 1e6:.0f} MB or set PACELINE_CACHE to a "
            "folder you own on another disk"
        ) from error
    return Pulled(str(name), folder / load, commit, tuple(chosen))


def _fetch(name: HubName, commit: str, file: HubFile, progress: Progress) -> None:
    url = f"{_endpoint()}/{name.id}/resolve/{commit}/{quote(file.name)}"
    fetch_file(Remote(url, file.num_bytes, file.sha256, _headers()), name.folder / commit / file.name, progress)


def _report(progress: Progress | None, before: int, total: int, here: int, of_file: int) -> None:
    if progress:
        progress(before + here, total)


def _listing(name: HubName) -> tuple[str, list[HubFile]]:
    """The commit of a revision, and its files."""
    url = f"{_endpoint()}/api/models/{name.id}/revision/{quote(name.revision, safe='')}?blobs=true"
    try:
        values = parse_object(read_url(url, _headers()), url)
        commit, siblings = values.get("sha"), values.get("siblings")
        if not is_text(commit) or not COMMIT.fullmatch(commit) or not isinstance(siblings, list):
            raise CorruptWeights("no list of files")
        return commit, [file for entry in siblings if (file := _file(entry))]
    except urllib.error.HTTPError as error:
        raise _refused(name, error) from None
    except (CorruptWeights, UnsupportedModel) as error:
        raise DownloadFailed(f"{name}: {url} is no listing of a hub ({error}); check HF_ENDPOINT") from None


def _file(entry: object) -> HubFile | None:
    """The file of an entry in a listing; None where it has no size, or a name that leads out of the folder."""
    fields = Fields(entry) if isinstance(entry, Mapping) else Fields({})
    path, digest = fields.text("rfilename", ""), fields.inner("lfs").text("sha256", "")
    size = fields.whole("size", -1, least=-1, most=1 << 50)
    outside = "\\" in path or ":" in path or PurePosixPath(path).is_absolute() or ".." in path.split("/")
    return None if not path or outside or size < 0 else HubFile(path, size, digest or None)


def _choose(name: HubName, files: Sequence[HubFile]) -> tuple[list[HubFile], str]:
    """The files to fetch, and which of them (or "" for their folder) to load."""
    quantised = [file for file in files if _is_gguf(file.name)]
    folder = [file for file in files if any(fnmatchcase(file.name, p) for p in FOLDER_FILES) and "/" not in file.name]
    has_weights = any(file.name.endswith(".safetensors") for file in folder)
    if not name.quant and has_weights:
        return folder, ""
    if not quantised:
        what = "leave the quantisation out: it has safetensors" if has_weights else "it is no language model to run"
        raise ModelNotFound(f"{name}: the repository has no GGUF files; {what}")
    wanted = [name.quant] if name.quant else _PREFERRED
    matches = [file for quant in wanted for file in sorted(quantised, key=lambda f: len(f.name)) if _is_of(file, quant)]
    matches = matches or (quantised if len(quantised) == 1 and not name.quant else [])
    if not matches:
        raise ModelNotFound(f"{name}: no GGUF file is {' or '.join(wanted)}; there are {_kinds(quantised)}")
    names, of_name = part_names(matches[0].name) or [matches[0].name], {file.name: file for file in quantised}
    missing = [one for one in names if one not in of_name]
    if missing:
        raise ModelNotFound(
            f"{name}: {matches[0].name} is one of {len(names)} parts, of which the repository lacks {missing[0]}; take "
            f"another of {_kinds(quantised)}"
        )
    return [of_name[one] for one in names], names[0]


def _is_gguf(path: str) -> bool:
    base = path.rsplit("/", 1)[-1].lower()
    return base.endswith(".gguf") and not any(word in base for word in _NO_MODELS)


def _is_of(file: HubFile, quant: str) -> bool:
    """Whether a file's name ends in the name of a quantisation, as ``model-Q4_K_M.gguf`` does."""
    stem = _PART.sub("", file.name.lower()).rsplit("/", 1)[-1].removesuffix(".gguf")
    marks = "-._" if _QUANT.fullmatch(quant) else "-."
    return stem == quant.lower() or stem.endswith(tuple(mark + quant.lower() for mark in marks))


def _kinds(files: Sequence[HubFile]) -> str:
    found = (_QUANT.findall(file.name.rsplit("/", 1)[-1]) for file in files)
    return ", ".join(sorted({kinds[-1] for kinds in found if kinds})) or ", ".join(file.name for file in files[:10])


def _refused(name: HubName, error: urllib.error.HTTPError) -> Exception:
    if error.code in (401, 403):
        return DownloadFailed(
            f"{name}: the hub has no such model, or shows it only to those who accepted its terms (HTTP {error.code}); "
            "do so on its page, then set HF_TOKEN"
        )
    if error.code == 404:
        return ModelNotFound(f"{name}: the hub has no such model or revision; check the spelling of owner/model")
    return DownloadFailed(f"{name}: the hub answers HTTP {error.code} {error.reason}; try again later")


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _headers() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN", "").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
