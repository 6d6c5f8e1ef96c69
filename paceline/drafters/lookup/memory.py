"""`Memory`: an n-gram model of a model's earlier answers, in a memory-mapped file.

A trie of the token sequences that occurred more than once, up to `order` tokens long (after REST, He et al. 2023, but
counted in advance and pruned). A node takes two bytes for its token (four in vocabularies of more than 65,536), one for
its smoothed probability, one for its number of children, and four bytes per 32 nodes.

Nodes are stored level by level, children of one parent together, the most probable first; so the children of node i + 1
begin where those of node i end. The file is a safetensors file with the arrays below and, as metadata, a fingerprint of
the vocabulary. Not for building one from texts (`training/memory.py`) nor for drafting (`grow.py`).
"""

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from paceline.disk import in_one_move
from paceline.drafters.lookup.grow import BLOCK
from paceline.errors import CorruptWeights, InvalidParameter

FORMAT = "paceline memory 1"
MOST_CHILDREN = 255
_MOST_ORDER, _MOST_TOKENS = 255, 1 << 24
"""Longest sequences and largest vocabulary of a file that is read: far above any that is written."""
_STEPS_PER_OCTAVE = 16
_KINDS = {"tokens": ("U16", "U32"), "chances": ("U8",), "counts": ("U8",), "blocks": ("U32",)}
_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32}

CHANCES = np.exp2(-np.arange(256, dtype=np.float64) / _STEPS_PER_OCTAVE).astype(np.float32)
"""[256] probabilities that the stored bytes stand for: 1 down to 2^-16, each 4.2 % below the one before."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Metadata of a memory file.

    Attributes:
        vocabulary: `Tokenizer.vocabulary_fingerprint` of the model.
        vocab_size: of that tokenizer.
        order: longest sequence, in tokens.
        num_tokens: number of tokens of answers that it was built from.
        model: the model that wrote them.
        about: description of how they were generated.
    """

    vocabulary: str
    vocab_size: int
    order: int
    num_tokens: int
    model: str = ""
    about: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Memory:
    """A trie of n-grams.

    Attributes:
        info: metadata.
        tokens: [nodes] uint16 or uint32, the last token of each sequence.
        chances: [nodes] uint8, index into `CHANCES`: probability of that token after the preceding ones.
        counts: [nodes] uint8, children of each node.
        blocks: [ceil(nodes / BLOCK)] uint32, where the children of every `BLOCK`-th node begin; the first of them is
            the number of single tokens.
    """

    info: MemoryInfo
    tokens: np.ndarray
    chances: np.ndarray
    counts: np.ndarray
    blocks: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(self, name).nbytes for name in _KINDS)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The argument `memory` of `grow`: tokens, chances, counts, blocks, node of every single token, `CHANCES`."""
        first = np.full(self.info.vocab_size, -1, dtype=np.int32)
        top = int(self.blocks[0]) if len(self.blocks) else 0
        first[self.tokens[:top]] = np.arange(top)
        named = (self.tokens, self.chances, self.counts, self.blocks, first, CHANCES)
        return tuple(_frozen(array) for array in named)


def no_memory() -> Memory:
    """An empty memory."""
    nothing = np.zeros(0, dtype=np.uint8)
    info = MemoryInfo("", 0, 1, 0)
    return Memory(info, nothing.astype(np.uint16), nothing, nothing, nothing.astype(np.uint32))


def stored_chances(chances: np.ndarray) -> np.ndarray:
    """Chances in (0, 1] as the nearest index into `CHANCES`, uint8."""
    steps = np.rint(-np.log2(np.maximum(chances, CHANCES[-1])) * _STEPS_PER_OCTAVE)
    return np.clip(steps, 0, 255).astype(np.uint8)


def child_blocks(counts: np.ndarray, num_single: int) -> np.ndarray:
    """`Memory.blocks` of nodes with `counts` children, `num_single` of which are single tokens."""
    starts = num_single + np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return starts[: len(counts) : BLOCK].astype(np.uint32)


def write_memory(path: Path, memory: Memory) -> int:
    """Write the file atomically; returns its size in bytes. Raises InvalidParameter when it cannot be written."""
    arrays = {name: np.ascontiguousarray(getattr(memory, name)) for name in _KINDS}
    info = {field.name: str(getattr(memory.info, field.name)) for field in fields(MemoryInfo)}
    data = save(arrays, {"format": FORMAT, "sha256": _digest(arrays), **info})
    try:
        with in_one_move(path) as file:
            file.write_bytes(data)
    except OSError as error:
        raise InvalidParameter("output", f"{path} cannot be written ({error})", "name another file") from None
    return len(data)


def read_memory(path: Path) -> Memory:
    """The memory at `path`, memory-mapped and validated.

    Raises:
        InvalidParameter: there is no such file, or it is not a memory.
        CorruptWeights: the file is truncated or damaged.
    """
    if not path.is_file():
        raise InvalidParameter("memory", f"{path} is no file", "write one with paceline train memory, or use 'none'")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if metadata.get("format") != FORMAT:
        problem = f"{path} holds {metadata.get('format', 'no memory')!r}, not {FORMAT!r}"
        raise InvalidParameter("memory", problem, "write one with paceline train memory")
    arrays = _mapped(path)
    try:
        memory = Memory(_info(metadata), **arrays)
    except (KeyError, ValueError) as error:
        raise _damaged(path, f"its description is not whole: {error}") from None
    if _digest(arrays) != metadata.get("sha256") or not _is_sound(memory):
        raise _damaged(path, "its content is not what was written")
    return memory


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """The memory-mapped arrays of a file whose header safetensors has validated."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int(data[:8].view("<u8")[0])
    table = json.loads(bytes(data[8:start]))
    arrays: dict[str, np.ndarray] = {}
    for name, kinds in _KINDS.items():
        entry = table.get(name, {})
        if entry.get("dtype") not in kinds or len(entry["shape"]) != 1:
            raise _damaged(path, f"it has no {name}")
        begin, end = entry["data_offsets"]
        arrays[name] = np.asarray(data[start + begin : start + end]).view(_DTYPES[entry["dtype"]])
    return arrays


def _info(metadata: dict[str, str]) -> MemoryInfo:
    named = {field.name: metadata[field.name] for field in fields(MemoryInfo)}
    numbers = {name: int(named[name]) for name in ("vocab_size", "order", "num_tokens")}
    return MemoryInfo(**{**named, **numbers})  # type: ignore[arg-type]


def _is_sound(memory: Memory) -> bool:
    """Whether every lookup stays in bounds: each node is the child of one earlier node, and tokens are valid."""
    size, counts = len(memory.tokens), memory.counts
    top = int(memory.blocks[0]) if len(memory.blocks) else 0
    lengths = len(memory.chances) == len(counts) == size and len(memory.blocks) == -(-size // BLOCK)
    if not lengths or top + int(counts.sum(dtype=np.int64)) != size:
        return False
    if not 1 <= memory.info.order <= _MOST_ORDER or memory.info.vocab_size > _MOST_TOKENS:  # the digest covers neither
        return False
    known = not size or int(memory.tokens.max()) < memory.info.vocab_size
    return known and np.array_equal(child_blocks(counts, top), memory.blocks)


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in _KINDS:
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view, so that mapped and in-memory arrays have the same Numba type."""
    view = array.view()
    view.flags.writeable = False
    return view


def _damaged(path: Path, problem: str) -> CorruptWeights:
    return CorruptWeights(
        f"{path}: {problem}; delete it, write it again with paceline train memory, or go without: memory=none"
    )
