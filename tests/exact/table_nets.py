"""Table models behind the three shapes of draft heads: heads over rationals, with caches that give wrong rows away.

The "hidden state" of a token is the token itself. A net looks the law of a path up from what it was fed and what its
cache holds, and refuses a row that was fed with the state of another token.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from paceline.models.base import ForwardOutput, Rows
from paceline.models.heads.nets import BlockOfRows, NetOutput

from .table_causal_lm import NUM_PAGES
from .tables import Model

TAP = 2
BLOCK = 3


class TableTarget:
    """A target whose tap is the token of each row; counts the rows it was run for."""

    config = SimpleNamespace(max_position_embeddings=1 << 20, recurrence=None)

    def __init__(self) -> None:
        self.num_rows = 0

    def forward(self, rows: Rows, cache: object, taps: tuple[int, ...] = ()) -> ForwardOutput:
        self.num_rows += len(rows.token_ids)
        return ForwardOutput(np.empty((0, 1)), {TAP: rows.token_ids[:, None].astype(float)})


class NetCache(dict):
    """(token before, token) by slot, or token by slot."""

    num_pages = NUM_PAGES
    num_bytes = 0


def record(num_steps: int = BLOCK, **fields) -> SimpleNamespace:
    """What runners read of a head."""
    config = SimpleNamespace(taps=(TAP,), num_steps=num_steps, mask_token_id=99, sample_from_anchor=True, **fields)
    return SimpleNamespace(config=config, draft_ids=None)


class AutoregressiveTable:
    """A head that knows the whole path: row r tells token r + 1, and was fed with the state of token r."""

    def __init__(self, model: Model) -> None:
        self.model, self.record = model, record()

    def new_cache(self, num_pages: int) -> NetCache:
        return NetCache()

    def project(self, taps: np.ndarray) -> np.ndarray:
        return taps

    def forward(self, rows: Rows, hidden: np.ndarray, cache: NetCache) -> NetOutput:
        tokens = rows.token_ids.tolist()
        cache.update(zip(rows.slots.tolist(), zip(hidden[:, 0].tolist(), tokens, strict=True), strict=True))
        logits = np.empty(len(rows.logit_rows), dtype=object)
        for i, row in enumerate(rows.logit_rows):
            seen = [cache[slot] for slot in rows.key_slots(row).tolist()]
            path = [int(seen[0][0]), *(token for _, token in seen)]
            assert [before for before, _ in seen] == path[:-1], "fed with the state of another token"
            logits[i] = [self.model(tuple(path))]
        return NetOutput(logits, np.array(tokens, float)[:, None])


class HalfTable:
    """A head that names two tokens in a pass: it knows the path to the end of its block, and the place in the next."""

    SIZE = 2

    def __init__(self, model: Model) -> None:
        self.model, self.record = model, record(block_tokens=self.SIZE)

    def new_cache(self, num_pages: int) -> NetCache:
        return NetCache()

    def project(self, taps: np.ndarray) -> np.ndarray:
        return taps

    def extend(self, tokens: np.ndarray, hidden: np.ndarray, positions: np.ndarray, slots: np.ndarray,
               before: np.ndarray, cache: NetCache) -> None:  # fmt: skip
        """A slot's state is the path to its row; what a row is fed is the token before it, or a mark of its place."""
        for token, fed, position, slot, above in zip(
            tokens.tolist(), hidden[:, 0].tolist(), positions.tolist(), slots.tolist(), before.tolist(), strict=True
        ):
            path = (int(fed),) if above < 0 else cache[above]
            assert position == len(path) - 1, "at another position"
            assert fed == path[-1] or fed == 100 + (position - cache["drafted from"]) % self.SIZE, "fed with another"
            cache[slot] = (*path, token)

    def draft(self, blocks: Sequence[BlockOfRows], cache: NetCache) -> NetOutput:
        logits, marks = [], []
        for block in blocks:
            seen = [cache[int(slot)] for slot in block.visible]
            path = seen[-1]
            assert [one[-1] for one in seen] == list(path[1:]), "a row of another path is seen"
            assert list(block.slots) == list(block.visible[-self.SIZE :])
            assert list(block.positions) == list(range(len(path) - 1 - self.SIZE, len(path) - 1))
            cache["drafted from"] = len(path) - 1
            for place in range(self.SIZE):
                logits.append(self.model((*path[:-1], place, path[-1]) if place else path))
                marks.append([100.0 + place])
        found = np.empty((len(logits), 1), dtype=object)
        for row, law in zip(found, logits, strict=True):
            row[0] = law
        return NetOutput(found, np.array(marks))


class BlockTable:
    """A head that knows the committed text at every place of its block, and at the first one the last token too."""

    def __init__(self, model: Model) -> None:
        self.model, self.record = model, record()

    def new_cache(self, num_pages: int) -> NetCache:
        return NetCache()

    def inject(self, taps: np.ndarray, positions: np.ndarray, slots: np.ndarray, cache: NetCache) -> None:
        cache.update(zip(slots.tolist(), taps[:, 0].astype(int).tolist(), strict=True))

    def forward(self, rows: Rows, cache: NetCache) -> NetOutput:
        cache.update(zip(rows.slots.tolist(), rows.token_ids.tolist(), strict=True))
        logits = np.empty((len(rows.logit_rows), 1), dtype=object)
        for row in range(len(logits)):
            seen = [cache[slot] for slot in rows.key_slots(row).tolist()]
            place = row % BLOCK
            assert seen[-BLOCK + 1 :] == [99] * (BLOCK - 1), "a place does not see its block"
            assert rows.positions[row] == len(seen) - BLOCK + place
            known = seen[: -BLOCK + 1]
            logits[row, 0] = Biased(self.model, tuple(known), place)
        return NetOutput(logits, np.zeros((len(logits), 1)))

    def bias(self, tokens: np.ndarray) -> np.ndarray:
        told = np.empty((len(tokens), 1), dtype=object)
        told[:, 0] = [Told(int(token)) for token in tokens]
        return told

    def confidence(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.ones(len(tokens))


class Told:
    """The token before a place."""

    def __init__(self, token: int) -> None:
        self.token = token


class Biased:
    """Logits of a place, to which the token before it is added."""

    def __init__(self, model: Model, known: tuple[int, ...], place: int) -> None:
        self._model, self._known, self._place = model, known, place

    def __add__(self, told: Told):
        if self._place == 0:
            assert told.token == self._known[-1]
            return self._model(self._known)
        return self._model((*self._known, self._place, told.token))


class StepTable:
    """A head that knows the last two tokens before the draft, and the drafted ones."""

    def __init__(self, model: Model) -> None:
        self.model, self.record = model, record()

    def begin(self, hidden: np.ndarray) -> np.ndarray:
        states = np.empty((len(hidden), 1), dtype=object)
        states[:, 0] = [(int(state),) for state in hidden[:, 0]]
        return states

    def step(self, level: int, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        below = np.empty((len(states), 1), dtype=object)
        below[:, 0] = [(*path, int(token)) for path, token in zip(states[:, 0], tokens, strict=True)]
        assert all(len(path) == level + 2 for path in below[:, 0])
        logits = np.empty(len(states), dtype=object)
        logits[:] = [[self.model(path)] for path in below[:, 0]]
        return logits, below
