"""The attention of a pass on the device: the Triton kernel, PyTorch's own as fallback, and the reference of both.

``triton`` and ``by_position`` read only static tensors, so that their passes can be captured as graphs (on a GPU only
those of ``triton``, since the reference synchronises); ``sdpa`` makes masks on the host for every pass. Not for the
kernel (`kernels/attention.py`).
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.models.cuda_executor.paged_rows import PagedRows, key_slots
from paceline.models.torch_executor.attention import Attends, AttentionForm, soft_cap

AttentionName = Literal["auto", "triton", "sdpa", "by_position"]


def choose_attention(asked: AttentionName, device: torch.device) -> AttentionName:
    """`asked`, or for ``auto`` the kernel on a GPU with Triton and PyTorch's own elsewhere.

    Raises:
        InvalidParameter: no such attention, or Triton is missing.
    """
    if asked not in AttentionName.__args__:
        known = ", ".join(AttentionName.__args__)
        raise InvalidParameter("attention", f"{asked!r} is unknown", f"use one of {known}")
    has_triton = find_spec("triton") is not None
    if asked == "auto":
        return "triton" if has_triton and device.type == "cuda" else "sdpa"
    if asked == "triton" and not has_triton:
        raise InvalidParameter("attention", "needs triton", f"run {install('cuda')}, or use 'sdpa'")
    return asked


def rows_of_tile(name: AttentionName, group: int) -> int:
    """Most rows of a tile where `group` query heads share a key head."""
    if name != "triton":
        return 1
    from paceline.models.cuda_executor.kernels.attention import rows_of_tile

    return rows_of_tile(group)


def attention_over(name: AttentionName, rows: PagedRows) -> Attends:
    """The attention called `name`, ``triton`` or ``by_position``, of a pass over `rows`."""
    if name == "by_position":
        return partial(attend_by_position, slots_of=cache(partial(key_slots, rows)))
    from paceline.models.cuda_executor.kernels.attention import paged_attention

    def attend(query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm) -> Tensor:
        return paged_attention(query, keys, values, rows, form)

    return attend


def attend_by_position(
    query: Tensor, keys: Tensor, values: Tensor, form: AttentionForm, slots_of: Callable[[int], Tensor]
) -> Tensor:
    """The kernel's reference: one row after another, softmax over its slots in order of position, in float32.

    Args:
        query, keys, values, form: as of `Attends`. Padding rows, which have no slots, get zeros.
        slots_of: the slots that a row sees, in order.
    """
    mixed = torch.zeros_like(query)
    grouped = query.reshape(len(query), keys.shape[1], -1, query.shape[2]).float()  # [M, key heads, group, D]
    for row in range(len(query)):
        slots = slots_of(row)[-form.window :]
        if not len(slots):
            continue
        seen, known = keys[slots].float(), values[slots].float()
        scores = soft_cap(grouped[row] @ seen.permute(1, 2, 0) * form.scale, form.cap)  # [key heads, group, keys]
        if form.sinks is not None:
            scores = torch.cat([scores, form.sinks.float().view(*scores.shape[:2], 1)], dim=2)
        weights = scores.softmax(dim=2)[..., : len(slots)]
        mixed[row] = (weights @ known.transpose(0, 1)).flatten(0, 1).to(query.dtype)
    return mixed
