"""bfloat16 numbers in NumPy, which has no type for them: the upper halves of float32 numbers, as uint16."""

import numpy as np


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """uint16 of the same shape: the nearest bfloat16 to each float32, ties to even, as processors and torch round."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(upper: np.ndarray) -> np.ndarray:
    """float32 of the same shape from uint16."""
    return (upper.astype(np.uint32) << np.uint32(16)).view(np.float32)
