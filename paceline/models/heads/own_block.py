"""The object ``paceline`` in a head's ``config.json``, for data that no published layout has a field for.

It holds the fingerprint of the target, which tables are shared with it, the digest of the draft ids, and the card.
Other programs ignore it; a file without it was written by another program.
"""

from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidParameter
from paceline.models.fields import is_number
from paceline.models.heads.draft_ids import ids_digest
from paceline.models.heads.record import HeadRecord, TargetPrint
from paceline.models.heads.strict import Settings

KEY = "paceline"
_FORMAT = 1
_LARGEST_SCALE = 1e6
"""Larger factors are damage: with them sums leave the range of float32."""


@dataclass(frozen=True, slots=True)
class OwnBlock:
    """The parsed object. `target` is None for a file of another program."""

    target: TargetPrint | None = None
    owns_embedding: bool = True
    owns_head: bool = True
    embedding_scale: float = 1.0
    max_positions: int = 0
    draft_ids_sha256: str = ""
    card: dict[str, object] = field(default_factory=dict)


def own_block(record: HeadRecord) -> dict[str, Any]:
    """The object for `record`."""
    config, target = record.config, record.config.target
    return {
        "format": _FORMAT,
        "family": config.family,
        "target": {
            "name": target.name, "hidden_size": target.hidden_size, "num_hidden_layers": target.num_hidden_layers,
            "vocab_size": target.vocab_size, "sha256": target.sha256, "template_sha256": target.template_sha256,
        },
        "owns_embedding": config.owns_embedding,
        "owns_head": config.owns_head,
        "embedding_scale": config.embedding_scale,
        "max_positions": config.max_positions,
        "draft_ids_sha256": ids_digest(record.draft_ids),
        "card": dict(record.card),
    }  # fmt: skip


def read_own_block(settings: Settings) -> OwnBlock:
    """The object in `settings`, or the defaults of a file without one.

    Raises:
        InvalidParameter: it was written by a newer version, or is damaged.
    """
    if KEY not in settings.values:
        settings.skip(KEY)
        return OwnBlock()
    own = settings.inner(KEY)
    if own.count("format") > _FORMAT:
        raise own.wrong("format", "is newer than this version reads", "upgrade paceline")
    own.skip("family")
    target = own.inner("target")
    prints = TargetPrint(
        str(target.take("name")), target.count("hidden_size"), target.count("num_hidden_layers", 0, 0),
        target.count("vocab_size"), str(target.take("sha256", "")), str(target.take("template_sha256", "")),
    )  # fmt: skip
    block = OwnBlock(
        prints, own.flag("owns_embedding", False), own.flag("owns_head", False),
        _scale(own), own.count("max_positions", 0, 0), str(own.take("draft_ids_sha256", "")), own.inner("card").values,
    )  # fmt: skip
    target.finish()
    own.finish()
    return block


def _scale(own: Settings) -> float:
    value = own.take("embedding_scale", 1.0)
    if not is_number(value) or not abs(value) < _LARGEST_SCALE:
        raise own.wrong("embedding_scale", f"{value!r} is no factor of embeddings", "correct the config")
    return float(value)


def check_ids(block: OwnBlock, ids: Any, source: object) -> None:
    """Raise InvalidParameter if the draft vocabulary `ids` is not the one recorded in `block`."""
    if block.target is not None and ids_digest(ids) != block.draft_ids_sha256:
        raise InvalidParameter(
            f"{source}: d2t", "is not the draft vocabulary that the head was trained with",
            "get config.json and model.safetensors from the same place",
        )  # fmt: skip
