"""Whether a head was made for this target: sizes, weights and chat template, compared before anything is drafted.

A head reads hidden states of one set of weights; with others it drafts nonsense, which costs time and changes no text.
So other weights are refused, another template is warned about. Not for what a head computes (`shapes.py`).
"""

import hashlib
from pathlib import Path

from paceline.errors import InvalidParameter
from paceline.models.cache_dir import cache_dir
from paceline.models.download import BUILTIN_MODELS, weights_path
from paceline.models.heads.record import HeadRecord, TargetPrint
from paceline.models.intact import file_digest
from paceline.models.resolve import ModelSource
from paceline.models.safetensors_folder import SafetensorsCheckpoint

_SHORT = 12


def target_print(source: ModelSource) -> TargetPrint:
    """What tells the model `source` from others. Its file is hashed once, the digest kept in the cache."""
    config, template = source.checkpoint.config, getattr(source.tokenizer, "chat_template", None)
    return TargetPrint(
        source.name,
        config.hidden_size,
        config.num_hidden_layers,
        config.vocab_size,
        weights_digest(source),
        hashlib.sha256(template.encode()).hexdigest() if template else "",
    )


def weights_digest(source: ModelSource) -> str:
    """SHA-256 of a GGUF file, or over the digests of a folder's files by name; empty for weights without files."""
    checkpoint = source.checkpoint
    path = getattr(checkpoint, "path", None)
    if path is None:
        return ""
    known = BUILTIN_MODELS.get(source.name)
    if known is not None and path == weights_path(known):
        return known.sha256
    note = cache_dir() / "prints" / checkpoint.fingerprint
    if note.is_file():
        return note.read_text()
    files = checkpoint.weight_files if isinstance(checkpoint, SafetensorsCheckpoint) else [path]
    digest = _digest(list(files))
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(digest)
    except OSError:
        pass  # a cache that cannot be written costs a second the next time
    return digest


def check_fit(record: HeadRecord, target: TargetPrint, any_weights: bool = False) -> tuple[str, ...]:
    """What is worth a warning about `record` beside `target`, a sentence each.

    Args:
        any_weights: let other weights of the same sizes pass, with a warning.

    Raises:
        InvalidParameter: another width, vocabulary, depth, or other weights.
    """
    own, warnings = record.config.target, []
    for field, noun in (("hidden_size", "width"), ("vocab_size", "vocabulary"), ("num_hidden_layers", "depth")):
        found, wanted = getattr(own, field), getattr(target, field)
        if found and found != wanted:
            raise InvalidParameter(
                "head", f"was trained for a target of {noun} {found}, {target.name} has {wanted}",
                f"use a head of {target.name}, or train one: paceline train head",
            )  # fmt: skip
    if own.sha256 and target.sha256 and own.sha256 != target.sha256:
        problem = (
            f"was trained for other weights: {own.name} ({own.sha256[:_SHORT]}), not {target.name} "
            f"({target.sha256[:_SHORT]})"
        )
        if not any_weights:
            raise InvalidParameter("head", problem, "use the file it was trained with, or train one for this file")
        warnings.append(f"the head {problem}")
    if own.template_sha256 and target.template_sha256 and own.template_sha256 != target.template_sha256:
        warnings.append("the head was trained under another chat template: expect fewer accepted tokens")
    return tuple(warnings)


def _digest(files: list[Path]) -> str:
    if len(files) == 1:
        return file_digest(files[0])
    lines = "".join(f"{path.name} {file_digest(path)}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()
