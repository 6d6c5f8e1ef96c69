"""Groups rows of a recurrent network into batches, so that each row runs after its predecessor."""

from collections.abc import Sequence


def waves(slots: Sequence[int], before: Sequence[int]) -> list[list[int]]:
    """Batches of row indices; each row is in a later batch than its predecessor.

    Args:
        slots: [n] cache slot of each row.
        before: [n] slot of each row's predecessor, which is an earlier row or none of these rows.
    """
    depth_at: dict[int, int] = {}
    found: list[list[int]] = []
    for row, (slot, above) in enumerate(zip(slots, before, strict=True)):
        depth = depth_at[slot] = depth_at.get(above, -1) + 1
        if depth == len(found):
            found.append([])
        found[depth].append(row)
    return found
