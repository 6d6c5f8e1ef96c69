"""Which layers of a model have a sliding window, as ``config.json`` and GGUF metadata say it.

Both functions return fields of `ModelConfig`: ``windows``, and ``layers_without_rope`` where positions depend on them.
Not for what a window means to attention (`ModelConfig.windows`).
"""

from typing import Any

from paceline.models.architecture.family import MOST_LAYERS, Family
from paceline.models.fields import Fields, refuse

_SLIDING = "sliding_attention"
_PATTERN = "attention.sliding_window_pattern"


def windows_from_hf(family: Family, fields: Fields, layers: int, longest: int) -> dict[str, Any]:
    """The windows of a ``config.json``; `longest` is the model's context length.

    Raises:
        UnsupportedModel: a value is invalid.
    """
    window = fields.whole("sliding_window", 0, least=0)
    asked = not family.window_asked or fields.flag("use_sliding_window", False)
    if family.window == "none" or not asked or not _matters(family, window, longest):
        return {}
    if family.window == "all":
        return _fields(family, (window,) * layers)
    kinds = fields.list("layer_types", str, MOST_LAYERS)
    if not kinds and family.window == "listed":
        raise refuse("layer_types", "missing, though use_sliding_window asks for windows in some layers")
    if not kinds:
        every = fields.whole("sliding_window_pattern", family.window_every or 1)
        first = fields.whole("max_window_layers", 0, least=0)
        return _fields(family, _every(window, layers, every if family.window_every else 0, first))
    if len(kinds) < layers or not set(kinds) <= {_SLIDING, "full_attention"}:
        raise refuse("layer_types", f"{len(kinds)} for {layers} layers, of full_attention and {_SLIDING} only")
    return _fields(family, tuple(window if kind == _SLIDING else 0 for kind in kinds[:layers]))


def windows_from_gguf(family: Family, own: Fields, layers: int, longest: int) -> dict[str, Any]:
    """The windows of a GGUF file, whose keys `own` come without the architecture's prefix.

    Raises:
        UnsupportedModel: a value is invalid.
    """
    window = own.whole("attention.sliding_window", family.gguf_window, least=0)
    if not _matters(family, window, longest):
        return {}
    if not isinstance(own.get(_PATTERN, None), list):
        every = own.whole(_PATTERN, family.window_every, least=0)
        return _fields(family, _every(window, layers, every))
    listed = own.list(_PATTERN, bool, MOST_LAYERS)
    if len(listed) < layers:
        raise refuse(_PATTERN, f"{len(listed)} for {layers} layers")
    return _fields(family, tuple(window if slides else 0 for slides in listed[:layers]))


def _matters(family: Family, window: int, longest: int) -> bool:
    """Whether there is a window that hides keys, or that decides on a layer's positions."""
    return window > 0 and (window < longest or family.window_every > 0)


def _fields(family: Family, windows: tuple[int, ...]) -> dict[str, Any]:
    still = tuple(i for i, window in enumerate(windows) if not window) if family.turns_windows else ()
    return {"windows": windows} | ({"layers_without_rope": still} if still else {})


def _every(window: int, layers: int, every: int, first: int = 0) -> tuple[int, ...]:
    """A window in the layers from `first` on, except in every `every`-th layer (0: no exception)."""
    return tuple(window if i >= first and not (every and (i + 1) % every == 0) else 0 for i in range(layers))
