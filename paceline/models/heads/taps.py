"""The hidden states that a head reads: programs number them differently, and files do not state the convention.

Here tap k is the input of layer k. EAGLE's own code, vLLM and `speculators` count like that; SGLang, SpecForge, NVIDIA
and z-lab name the layer that outputs the state, which is one less.
"""

from collections.abc import Sequence
from typing import Literal

from paceline.errors import InvalidParameter
from paceline.models.base import NORMED
from paceline.models.fields import is_whole

Convention = Literal["entering", "leaving"]
"""Whether a file's layer number names the layer that reads a hidden state, or the layer that outputs it."""


def canonical_taps(ids: Sequence[int], convention: Convention, num_layers: int, field: str) -> tuple[int, ...]:
    """Taps of the layers `ids` of a target with `num_layers` (0 where it is not known).

    Raises:
        InvalidParameter: `ids` is empty, or has a layer that the target does not have.
    """
    if not isinstance(ids, list | tuple) or not ids or not all(map(is_whole, ids)):
        raise InvalidParameter(field, f"{ids!r} is no list of layers", "correct the config")
    taps = tuple(int(i) + (convention == "leaving") for i in ids)
    if min(taps) < 0 or (num_layers and max(taps) > num_layers):
        raise InvalidParameter(
            field, f"{list(ids)} leaves a target of {num_layers} layers", "use a head that was trained for this target"
        )
    return taps


def file_ids(taps: Sequence[int], convention: Convention) -> list[int]:
    """What a file of that convention says for `taps`.

    Raises:
        InvalidParameter: a tap is the embeddings' output, which no layer outputs, or the state after the final norm.
    """
    ids = [tap - (convention == "leaving") for tap in taps]
    if NORMED in taps or min(ids) < 0:
        raise InvalidParameter("taps", f"{list(taps)} cannot be written as layers", "convert to another layout")
    return ids


def eagle3_default(num_layers: int) -> tuple[int, ...]:
    """Default taps of EAGLE-3 heads."""
    return 2, num_layers // 2, num_layers - 3


def dflash_default(num_layers: int, num_taps: int) -> tuple[int, ...]:
    """Default taps of z-lab's DFlash: the outputs of layers spaced evenly from 1 to n - 3."""
    if num_taps == 1:
        return (num_layers // 2 + 1,)
    step = (num_layers - 4) / (num_taps - 1)
    return tuple(round(1 + i * step) + 1 for i in range(num_taps))


def told(taps: Sequence[int], ids: Sequence[int] | None, reason: str) -> str:
    """A sentence for `HeadRecord.notes` on how taps were read."""
    if ids is None:
        return f"taps {list(taps)}: the file names none, so {reason}"
    return f"taps {list(taps)}: the file says {list(ids)}, read {reason}"
