"""Reads codes, scales and shifts from the bytes of GGUF blocks, one function per kind of block.

Layouts are those of the GGUF specification; the tests compare every one with the gguf package's own dequantisation. Not
for the layout that kernels read (`pack.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.models.numba_executor.blocks.formats import GROUP, INT4, BlockFormat


@dataclass(frozen=True, eq=False, slots=True)
class Codes:
    """A matrix [n, k] as codes, scales and shifts; a weight is scale * (code - zero) + shift (`BlockFormat`).

    Attributes:
        codes: [n, k] uint8, before the format's table.
        scales: [n, k / unit] float16, or uint8 exponents.
        shifts: the same for shifts, with their sign, or for zero points; None without.
        scale_steps, shift_steps: [n, k / span] integers by which stepped formats multiply `scales` and `shifts`,
            uint8 or int8; else None.
    """

    codes: np.ndarray
    scales: np.ndarray
    shifts: np.ndarray | None = None
    scale_steps: np.ndarray | None = None
    shift_steps: np.ndarray | None = None

    def scale_numbers(self, form: BlockFormat) -> np.ndarray:
        """[n, k / unit] `scales` as numbers: float16, or the float32 powers of two of their exponents."""
        return np.ldexp(np.float32(1), self.scales.astype(np.int32) - 128) if form.exponents else self.scales

    def values(self, form: BlockFormat) -> np.ndarray:
        """The weights [n, k] as float32; a slow, clear reference."""
        table = np.array(form.table or range(256), np.float32)
        codes = (table[self.codes] - form.zero).reshape(len(self.codes), -1, form.span)
        spans = codes * _spread(self.scale_numbers(form), self.scale_steps, form)[:, :, None]
        if self.shifts is not None:
            shifts = _spread(self.shifts, self.shift_steps, form)
            spans += (-shifts * self.scales.astype(np.float32) if form.zero_points else shifts)[:, :, None]
        return spans.reshape(self.codes.shape)


def _spread(numbers: np.ndarray, steps: np.ndarray | None, form: BlockFormat) -> np.ndarray:
    """One float32 per span."""
    wide = np.repeat(numbers.astype(np.float32), form.unit // form.span, axis=1)
    return wide if steps is None else wide * steps.astype(np.float32)


def unpack(raw: np.ndarray, form: BlockFormat, block_bytes: int) -> Codes:
    """Rows of blocks [n, k / values per block * block_bytes] uint8 as `Codes`."""
    return _READERS[form.name](raw.reshape(len(raw), -1, block_bytes))


def round_to_q8_0(values: np.ndarray) -> Codes:
    """Float weights [n, k] rounded to Q8_0: 8-bit codes; a group of 32 is scaled to magnitudes up to 127."""
    groups = values.reshape(len(values), -1, GROUP).astype(np.float32)
    scales = (np.abs(groups).max(axis=2) / 127).astype(np.float16)
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)[:, :, None]
    codes = np.clip(np.rint(groups / divisors), -127, 127).astype(np.int16) + 128
    return Codes(codes.astype(np.uint8).reshape(values.shape), scales)


def _rows(parts: np.ndarray) -> np.ndarray:
    """[n, blocks, ...] as [n, values]."""
    return np.ascontiguousarray(parts).reshape(len(parts), -1)


def _halves(raw: np.ndarray, start: int) -> np.ndarray:
    """float16 numbers [n, blocks] at byte `start` of each block."""
    return np.ascontiguousarray(raw[:, :, start : start + 2]).view(np.float16)[:, :, 0]


def _nibbles(bytes_: np.ndarray) -> np.ndarray:
    """[.., b] bytes as [.., 2 b] codes: all low halves, then all high ones."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1)


def _bits(bytes_: np.ndarray) -> np.ndarray:
    """[.., b] bytes as [.., 8 b] bits, lowest first."""
    return np.unpackbits(np.ascontiguousarray(bytes_), axis=-1, bitorder="little")


def _q4_0(raw: np.ndarray) -> Codes:
    return Codes(_rows(_nibbles(raw[:, :, 2:18])), _halves(raw, 0))


def _q4_1(raw: np.ndarray) -> Codes:
    return Codes(_rows(_nibbles(raw[:, :, 4:20])), _halves(raw, 0), _halves(raw, 2))


def _q5_0(raw: np.ndarray) -> Codes:
    codes = _nibbles(raw[:, :, 6:22]) | _bits(raw[:, :, 2:6]) << 4
    return Codes(_rows(codes), _halves(raw, 0))


def _q5_1(raw: np.ndarray) -> Codes:
    codes = _nibbles(raw[:, :, 8:24]) | _bits(raw[:, :, 4:8]) << 4
    return Codes(_rows(codes), _halves(raw, 0), _halves(raw, 2))


def _q8_0(raw: np.ndarray) -> Codes:
    return Codes(_rows(raw[:, :, 2:34] ^ np.uint8(128)), _halves(raw, 0))


def _quarters(bytes_: np.ndarray) -> np.ndarray:
    """[.., 64] bytes as [.., 256] two-bit codes: per 32 bytes, all lowest pairs of bits, then the next."""
    lines = bytes_.reshape(*bytes_.shape[:-1], 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    return (lines >> shifts & 3).reshape(*bytes_.shape[:-1], 256)


def _high_bits(bytes_: np.ndarray) -> np.ndarray:
    """[.., 32] bytes as [.., 256] bits: the lowest bit of every byte, then the next."""
    shifts = np.arange(8, dtype=np.uint8).reshape(8, 1)
    return (bytes_[..., None, :] >> shifts & 1).reshape(*bytes_.shape[:-1], 256)


def _q2_k(raw: np.ndarray) -> Codes:
    steps = raw[:, :, :16]
    return Codes(
        _rows(_quarters(raw[:, :, 16:80])), _halves(raw, 80), -_halves(raw, 82), _rows(steps & 15), _rows(steps >> 4)
    )


def _q3_k(raw: np.ndarray) -> Codes:
    codes = _quarters(raw[:, :, 32:96]) | _high_bits(raw[:, :, :32]) << 2
    low, high = _nibbles(raw[:, :, 96:104]), raw[:, :, 104:108]
    upper = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    steps = (low | upper << 4).astype(np.int8) - np.int8(32)
    return Codes(_rows(codes), _halves(raw, 108), None, _rows(steps))


def _six_bit_pairs(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[.., 12] bytes as 8 scales and 8 shifts of 6 bits each."""
    low, middle, last = raw[..., 0:4], raw[..., 4:8], raw[..., 8:12]
    scales = np.concatenate([low & 63, last & 15 | low >> 6 << 4], axis=-1)
    shifts = np.concatenate([middle & 63, last >> 4 | middle >> 6 << 4], axis=-1)
    return _rows(scales), _rows(shifts)


def _in_pairs(bytes_: np.ndarray) -> np.ndarray:
    """[.., 128] bytes as [.., 256] codes: per 32 bytes the low halves, then the high ones."""
    return _nibbles(bytes_.reshape(*bytes_.shape[:-1], 4, 32)).reshape(*bytes_.shape[:-1], 256)


def _q4_k(raw: np.ndarray) -> Codes:
    codes = _rows(_in_pairs(raw[:, :, 16:144]))
    return Codes(codes, _halves(raw, 0), -_halves(raw, 2), *_six_bit_pairs(raw[:, :, 4:16]))


def _q5_k(raw: np.ndarray) -> Codes:
    codes = _rows(_in_pairs(raw[:, :, 48:176]) | _high_bits(raw[:, :, 16:48]) << 4)
    return Codes(codes, _halves(raw, 0), -_halves(raw, 2), *_six_bit_pairs(raw[:, :, 4:16]))


def _q6_k(raw: np.ndarray) -> Codes:
    low = raw[:, :, :128].reshape(*raw.shape[:2], 2, 64)
    codes = _nibbles(low).reshape(*raw.shape[:2], 256) | _quarters(raw[:, :, 128:192]) << 4
    return Codes(_rows(codes), _halves(raw, 208), None, _rows(raw[:, :, 192:208]).view(np.int8))


def _iq4_xs(raw: np.ndarray) -> Codes:
    codes = _nibbles(raw[:, :, 8:136].reshape(*raw.shape[:2], 8, 16))
    low = np.stack([raw[:, :, 4:8] & 15, raw[:, :, 4:8] >> 4], axis=-1).reshape(*raw.shape[:2], 8)
    high = np.concatenate([raw[:, :, byte : byte + 1] >> np.array([0, 2, 4, 6], np.uint8) & 3 for byte in (2, 3)], -1)
    steps = (low | high << 4).astype(np.int8) - np.int8(32)
    return Codes(_rows(codes), _halves(raw, 0), None, _rows(steps))


def _mxfp4(raw: np.ndarray) -> Codes:
    return Codes(_rows(_nibbles(raw[:, :, 1:17])), raw[:, :, 0])


_READERS: dict[str, Callable[[np.ndarray], Codes]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, INT4: _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "IQ4_NL": _q4_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}  # fmt: skip
