"""Which hidden states heads read by default."""


def eagle_taps(num_layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high residual stream (Li et al. 2025): those entering layers 2, n // 2 and n - 3."""
    return (min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0))
