"""`target_print`: what tells a target from any other, for the head that is trained for it."""

import hashlib
from pathlib import Path

from paceline.models.download import BUILTIN_MODELS
from paceline.models.heads.record import TargetPrint
from paceline.models.intact import file_digest
from paceline.models.resolve import ModelSource


def target_print(source: ModelSource) -> TargetPrint:
    """Name, sizes, and digests of the weights and the chat template of a model that was found.

    A folder's digest is that of the digests of its safetensors files, in order of name; a hub id has none.
    """
    config = source.checkpoint.config
    return TargetPrint(
        source.name, config.hidden_size, config.num_hidden_layers, config.vocab_size, _weights_digest(source.name),
        source.tokenizer.chat_template_digest,
    )  # fmt: skip


def _weights_digest(name: str) -> str:
    if name in BUILTIN_MODELS:
        return BUILTIN_MODELS[name].sha256
    path = Path(name).expanduser()
    if path.is_file():
        return file_digest(path)
    digests = "".join(file_digest(one) for one in sorted(path.glob("*.safetensors"))) if path.is_dir() else ""
    return hashlib.sha256(digests.encode()).hexdigest() if digests else ""
