"""`target_print`: the fingerprint of a target model, to match draft heads with the target they were trained for."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from paceline.models.cache_dir import cache_dir
from paceline.models.fetch.download import BUILTIN_MODELS, weights_path
from paceline.models.files.checkpoint import LiesInFiles
from paceline.models.heads.record import TargetPrint
from paceline.models.intact import file_digest
from paceline.models.resolve import ModelSource


def target_print(source: ModelSource) -> TargetPrint:
    """Name, sizes, and digests of the weights and the chat template of a model."""
    config = source.checkpoint.config
    template = getattr(source.tokenizer, "chat_template_digest", "")
    return TargetPrint(
        source.name, config.hidden_size, config.num_hidden_layers, config.vocab_size, weights_digest(source), template
    )


def weights_digest(source: ModelSource) -> str:
    """SHA-256 of a GGUF file, or of the digests of several files or a folder's in order of name; empty without files.

    Files are hashed once; the digest is kept in the cache until they change.
    """
    checkpoint = source.checkpoint
    if not isinstance(checkpoint, LiesInFiles):
        return ""
    path, files = checkpoint.path, tuple(checkpoint.weight_files)
    known = BUILTIN_MODELS.get(source.name)
    if known is not None and path == weights_path(known):
        return known.sha256
    note = cache_dir() / "prints" / checkpoint.fingerprint
    if note.is_file():
        return note.read_text()
    digest = file_digest(path) if files == (path,) else _digest(files)
    _keep(note, digest)
    return digest


def _digest(files: Sequence[Path]) -> str:
    digests = "".join(file_digest(path) for path in sorted(files))
    return hashlib.sha256(digests.encode()).hexdigest()


def _keep(note: Path, digest: str) -> None:
    """Store `digest` in the cache; where that fails it is computed again next time."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(digest)
    except OSError:
        return
