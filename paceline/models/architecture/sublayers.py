"""`Sublayers`: the layers of models whose files number attention, states and feed-forwards one by one (Nemotron-H).

Each of these has a norm before it and a residual around it. A layer here is attention or a state and, where it comes
next, the feed-forward. Not for sizes of layers (`layer_sizes.py`) or for names in files (`files/sources.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.models.architecture.family import MOST_LAYERS
from paceline.models.fields import Fields, refuse

_KEY_HEADS, _WIDTHS = "attention.head_count_kv", "feed_forward_length"
_PATTERN, _NAMED = "hybrid_override_pattern", "layers_block_type"
_LETTERS = {"M": "state", "*": "attention", "-": "mlp", "E": "experts"}
_NAMES = {
    "mamba": "state", "linear_attention": "state", "attention": "attention", "full_attention": "attention",
    "mlp": "mlp", "moe": "experts",
}  # fmt: skip
_FEED_FORWARDS = ("mlp", "experts")


@dataclass(frozen=True, slots=True)
class Sublayers:
    """Which sublayers make layers.

    Attributes:
        numbers: of each layer the number of its attention or state; its feed-forward has the next one.
        without_mlp: layers without a feed-forward. recurrent: layers with a state. Both ascending.
        has_experts: whether feed-forwards are mixtures of experts.
    """

    numbers: tuple[int, ...]
    without_mlp: tuple[int, ...]
    recurrent: tuple[int, ...]
    has_experts: bool


def sublayers_from_hf(fields: Fields) -> Sublayers:
    """The sublayers of a ``config.json``, which has a name or a letter for each.

    Raises:
        UnsupportedModel: one is unknown, or they do not make layers.
    """
    if _NAMED in fields:
        name, known, said = _NAMED, _NAMES, fields.list(_NAMED, str, MOST_LAYERS)
    else:
        name, known, said = _PATTERN, _LETTERS, list(fields.text(_PATTERN, ""))[:MOST_LAYERS]
    unknown = sorted({*said} - known.keys())
    if unknown or not said:
        raise refuse(name, f"{unknown or 'nothing'}, where each must be one of {', '.join(known)}")
    return _joined(name, [known[one] for one in said])


def sublayers_from_gguf(own: Fields, has_experts: bool) -> Sublayers:
    """The sublayers of a GGUF file, whose keys `own` come without the architecture's prefix.

    A feed-forward has a width, attention has key heads, a state has neither. The last ones, for multi-token prediction,
    are left out.

    Raises:
        UnsupportedModel: a list is too short, or the sublayers do not make layers.
    """
    count = own.whole("block_count", most=MOST_LAYERS) - own.whole("nextn_predict_layers", 0, least=0)
    heads, widths = (own.list(name, int, MOST_LAYERS) for name in (_KEY_HEADS, _WIDTHS))
    for name, listed in ((_KEY_HEADS, heads), (_WIDTHS, widths)):
        if len(listed) < count:
            raise refuse(name, f"{len(listed)} for {count} layers")
    wide = "experts" if has_experts else "mlp"
    return _joined(_WIDTHS, [wide if widths[i] else "attention" if heads[i] else "state" for i in range(count)])


def _joined(name: str, kinds: Sequence[str]) -> Sublayers:
    """Sublayers of these kinds, which the field `name` says."""
    numbers = tuple(i for i, kind in enumerate(kinds) if kind not in _FEED_FORWARDS)
    for i, kind in enumerate(kinds):
        if kind in _FEED_FORWARDS and i - 1 not in numbers:
            raise refuse(name, f"the feed-forward number {i} follows neither attention nor a state")
    if {*_FEED_FORWARDS} <= {*kinds}:
        raise refuse(name, "feed-forwards with experts beside others without are not implemented")
    followed = {i - 1 for i, kind in enumerate(kinds) if kind in _FEED_FORWARDS}
    without = tuple(i for i, number in enumerate(numbers) if number not in followed)
    recurrent = tuple(i for i, number in enumerate(numbers) if kinds[number] == "state")
    return Sublayers(numbers, without, recurrent, "experts" in kinds)
