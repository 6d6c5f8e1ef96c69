"""Which hidden states heads read by default."""


def eagle_taps(num_layers: int) -> tuple[int, int, int]:
    """Taps of a low, a middle and a high layer (Li et al. 2025): the residual streams into layers 2, n // 2, n - 3."""
    return (min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0))
