"""Mask rows after the last committed token, from which P-EAGLE heads draft all levels in one pass (arXiv 2602.01469).

For greedy chains. Not for what a pass computes (`nets.py`), nor for block heads, whose rows attend to each other.
"""

from collections.abc import Callable

import numpy as np

from paceline.models.base import PAGE_SIZE, KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.heads.nets import NetOutput


def draft_masks(
    forward: Callable[[Rows, np.ndarray, KVCache], NetOutput], ids: np.ndarray | None, mask_state: np.ndarray,
    rows: Rows, hidden: np.ndarray, cache: KVCache, num_tokens: int,
) -> ChainDraft:  # fmt: skip
    """A greedy chain after each logit row, in one pass.

    Args:
        forward: of the net, `AutoregressiveNet.forward`.
        ids: its `HeadRecord.draft_ids`.
        mask_state: [hidden] input state of a mask row, by which the net recognises it.
        rows, hidden, cache: as for `AutoregressiveNet.forward`; the logit rows are the last of their segments, whose
            pages hold `num_tokens` - 1 more slots.
        num_tokens: tokens to draft, 1 or more.
    """
    masks, order = with_masks(rows, num_tokens - 1)
    states = np.broadcast_to(mask_state, (len(order) - len(hidden), len(mask_state)))
    logits, _ = forward(masks, np.concatenate([hidden, states])[order], cache)
    logits = logits.reshape(-1, num_tokens, logits.shape[1])
    best, highest = logits.argmax(axis=2), logits.max(axis=2, keepdims=True)
    tokens = best if ids is None else ids[best]
    return ChainDraft(tokens.astype(np.int32), 1 / np.exp(logits - highest).sum(axis=2))


def with_masks(rows: Rows, count: int) -> tuple[Rows, np.ndarray]:
    """`rows` with `count` mask rows after each logit row, which are logit rows as well, and the origin of each row.

    The origin is the row's index in `rows`; added rows are numbered after those.
    """
    asked, num_rows = rows.logit_rows, len(rows.token_ids)
    positions = (rows.positions[asked][:, None] + np.arange(1, count + 1)).reshape(-1)
    segments = np.repeat(rows.segments[asked], count)
    order = np.argsort(np.concatenate([rows.segments, segments]), kind="stable")
    slots = rows.page_tables[segments, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def joined(own: np.ndarray, added: np.ndarray) -> np.ndarray:
        return np.concatenate([own, added]).astype(np.int32)[order]

    is_asked = np.zeros(num_rows + len(positions), bool)
    is_asked[asked] = is_asked[num_rows:] = True
    return Rows(
        token_ids=joined(rows.token_ids, np.zeros(len(positions))),
        positions=joined(rows.positions, positions),
        slots=joined(rows.slots, slots),
        segments=joined(rows.segments, segments),
        page_tables=rows.page_tables,
        natural_lengths=joined(rows.natural_lengths, positions + 1),
        branch_slots=np.pad(rows.branch_slots, ((0, len(positions)), (0, 0)), constant_values=-1)[order],
        logit_rows=np.flatnonzero(is_asked[order]).astype(np.int32),
    ), order
