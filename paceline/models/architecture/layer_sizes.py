"""`LayerSizes`: what differs from layer to layer, and how ``config.json`` and GGUF metadata say it (Gemma 4).

Not for windows (`windows.py`) or for sizes that all layers share (`config.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.models.architecture.family import MOST_LAYERS
from paceline.models.fields import Fields, refuse

_FULL = "full_attention"
_OVERRIDES = frozenset({"head_dim", "num_key_value_heads"})
_FEED_FORWARD, _KEY_HEADS = "feed_forward_length", "attention.head_count_kv"
_SLIDES = "attention.sliding_window_pattern"
PER_LAYER = (_FEED_FORWARD, _KEY_HEADS)
"""GGUF's keys that may be a list with a number for each layer."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of one layer.

    Attributes:
        head_dim, num_key_value_heads, intermediate_size: as in `ModelConfig`.
        cache_layer: the layer whose keys and values it reads; its own number where it computes them.
        has_keys: whether it computes keys and values.
        has_values: whether it projects values; else they are its keys before norm and rotation.
    """

    head_dim: int
    num_key_value_heads: int
    intermediate_size: int
    cache_layer: int
    has_keys: bool = True
    has_values: bool = True


def sizes_from_hf(fields: Fields) -> dict[str, Any]:
    """The fields of `ModelConfig` that follow from the sizes of Gemma 4's layers.

    Raises:
        UnsupportedModel: the kinds of layers are missing, or a layer has keys of no other.
    """
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.list("layer_types", str, MOST_LAYERS)
    if len(kinds) < layers or kinds[layers - 1] != _FULL:
        raise refuse("layer_types", f"{len(kinds)} for {layers} layers, of which the last must be {_FULL}")
    equal = fields.flag("attention_k_eq_v", False)
    heads = [fields.whole("head_dim"), fields.whole("num_key_value_heads")]
    full = {"head_dim": fields.whole("global_head_dim", 512)}
    if equal and "num_global_key_value_heads" in fields:
        full["num_key_value_heads"] = fields.whole("num_global_key_value_heads")
    said = {str(i): full for i in range(layers) if kinds[i] == _FULL}
    changes = fields.get("per_layer_config", said)
    first_shared = layers - fields.whole("num_kv_shared_layers", 0, least=0)
    mixture = fields.flag("enable_moe_block", False)
    inner = fields.whole("moe_intermediate_size" if mixture else "intermediate_size")
    if mixture:
        fields.expect("use_double_wide_mlp", False)
    wide = inner * 2 if fields.flag("use_double_wide_mlp", False) else inner
    sizes = [
        _sizes(i, *_changed(changes, i, heads), inner if i < first_shared else wide, kinds, first_shared, equal)
        for i in range(layers)
    ]
    return _fields(sizes)


def sizes_from_gguf(own: Fields) -> dict[str, Any]:
    """As `sizes_from_hf`, from GGUF keys without the architecture's prefix; values that are keys are not said there."""
    layers = own.whole("block_count", most=MOST_LAYERS)
    slides = own.list(_SLIDES, bool, MOST_LAYERS)
    if len(slides) < layers or slides[layers - 1]:
        raise refuse(_SLIDES, f"{len(slides)} for {layers} layers, of which the last must not slide")
    kinds = ["sliding_attention" if slides[i] else _FULL for i in range(layers)]
    dim = own.whole("attention.key_length")
    dims = {_FULL: dim, "sliding_attention": own.whole("attention.key_length_swa", dim)}
    width = "expert_feed_forward_length" if own.get("expert_count", 0) else _FEED_FORWARD
    key_heads, inner = (_listed(own, name, layers) for name in (_KEY_HEADS, width))
    for kind in ("attention.value_length_swa", "rope.dimension_count_swa"):
        own.expect(kind, dims["sliding_attention"])
    first_shared = layers - own.whole("attention.shared_kv_layers", 0, least=0)
    sizes = [_sizes(i, dims[kinds[i]], key_heads[i], inner[i], kinds, first_shared, False) for i in range(layers)]
    return _fields(sizes)


def values_apart(
    sizes: Sequence[LayerSizes], windows: Sequence[int], shapes: Mapping[str, object]
) -> tuple[LayerSizes, ...]:  # fmt: skip
    """`sizes` with values that are keys in layers of full attention, if the GGUF file has no values for any of them."""
    full = [i for i, one in enumerate(sizes) if one.has_keys and not windows[i]]
    if any(f"blk.{i}.attn_v.weight" in shapes for i in full):
        return tuple(sizes)
    return tuple(replace(one, has_values=False) if i in full else one for i, one in enumerate(sizes))


def largest(own: Fields, name: str, *default: int) -> int:
    """A number that may be a list with one for each layer: the largest."""
    return max(own.list(name, int, MOST_LAYERS)) if isinstance(own.get(name, None), list) else own.whole(name, *default)


def _listed(own: Fields, name: str, layers: int) -> Sequence[int]:
    if not isinstance(own.get(name, None), list):
        return [own.whole(name)] * layers
    numbers = own.list(name, int, MOST_LAYERS)
    if len(numbers) < layers or min(numbers) < 1:
        raise refuse(name, f"{len(numbers)} numbers, not one above 0 for each of {layers} layers")
    return numbers


def _changed(changes: object, layer: int, heads: Sequence[int]) -> tuple[int, int]:
    """(head_dim, key heads) of a layer."""
    own = changes.get(str(layer), {}) if isinstance(changes, Mapping) else None
    if not isinstance(own, Mapping) or not own.keys() <= _OVERRIDES:
        raise refuse("per_layer_config", f"only {', '.join(sorted(_OVERRIDES))} of layers by number are implemented")
    fields = Fields(own)
    return fields.whole("head_dim", heads[0]), fields.whole("num_key_value_heads", heads[1])


def _sizes(
    layer: int, dim: int, key_heads: int, inner: int, kinds: Sequence[str], first_shared: int, equal: bool
) -> LayerSizes:  # fmt: skip
    """The sizes of a layer; those from `first_shared` on read the keys of the last one before of their kind."""
    has_keys = layer < first_shared
    before = [i for i in range(max(first_shared, 0)) if kinds[i] == kinds[layer]]
    if not before:
        raise refuse("num_kv_shared_layers", f"no layer before number {first_shared} computes keys of {kinds[layer]}")
    source = layer if has_keys else before[-1]
    return LayerSizes(dim, key_heads, inner, source, has_keys, has_keys and not (equal and kinds[layer] == _FULL))


def _fields(sizes: Sequence[LayerSizes]) -> dict[str, Any]:
    return {
        "layer_sizes": tuple(sizes),
        **{name: max(getattr(one, name) for one in sizes)
           for name in ("head_dim", "num_key_value_heads", "intermediate_size")},
    }  # fmt: skip
