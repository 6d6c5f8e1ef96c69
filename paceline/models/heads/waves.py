"""Rows that follow from each other, in the order they can be run."""

from collections.abc import Sequence


def waves(slots: Sequence[int], before: Sequence[int]) -> list[list[int]]:
    """Rows, those of a wave after the waves of the rows before them.

    Args:
        slots: [n] of each row.
        before: [n] slot of the row before each; of an earlier row, or of none of these.
    """
    depth_at: dict[int, int] = {}
    found: list[list[int]] = []
    for row, (slot, above) in enumerate(zip(slots, before, strict=True)):
        depth = depth_at[slot] = depth_at.get(above, -1) + 1
        if depth == len(found):
            found.append([])
        found[depth].append(row)
    return found
