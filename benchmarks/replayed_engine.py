"""Models that replay a recording, a virtual clock that only they advance, and the production engine around them.

For `draft_replay.py`. The engine is that of `build_engine`; only `engine_for` knows how models and clock get into it.
Off the recorded path these models return arbitrary deterministic logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
from draft_recordings import Answer, Recording

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.setup import build
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, ForwardOutput, Rows, slot_of
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource

_ROOT = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_IMPOSSIBLE = -1e4
"""A logit whose token has no probability beside one of 0."""

_ROOM = 1 << 32
"""Bytes for keys and values: all prompts stay in the prefix cache until they are answered."""


@dataclass(slots=True)
class VirtualClock:
    """Seconds that pass only when a model runs."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class PassTable:
    """Seconds of a pass over M rows, by context, on straight lines between the points and beyond the last.

    Attributes:
        milliseconds: context to rows to milliseconds, for two contexts; what is below the first counts as the first.
    """

    milliseconds: Mapping[int, Mapping[int, float]]

    def __call__(self, rows: int, context: float) -> float:
        """Seconds of a pass over `rows` rows with `context` tokens before each, on average."""
        (low, first), (high, second) = self.milliseconds.items()
        start, end = _on_line(first, rows), _on_line(second, rows)
        return 1e-3 * (start + (end - start) * max(0.0, context - low) / (high - low))


def _on_line(points: Mapping[int, float], at: float) -> float:
    """Linear interpolation of `points` at `at`, extrapolated beyond the last."""
    places = sorted(points)
    right = next((i for i, place in enumerate(places) if place >= at), len(places) - 1)
    low, high = places[max(right - 1, 0)], places[max(right, 1)]
    return points[low] + (points[high] - points[low]) * (max(at, places[0]) - low) / (high - low)


class PathCache:
    """Replaces the KV cache: holds, for each slot, a hash of the text up to and including its token."""

    def __init__(self, config: ModelConfig, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_bytes = num_pages * PAGE_SIZE * 8 * config.num_hidden_layers * config.num_key_value_heads * (
            config.head_dim
        )  # fmt: skip
        self.keys = [0] * (num_pages * PAGE_SIZE)

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `KVCache.move`."""
        moved = [self.keys[slot] for slot in sources]
        for slot, key in zip(destinations, moved, strict=True):
            self.keys[slot] = key

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """There are no keys and values."""
        raise NotImplementedError("a replayed model has no keys and values")


def below(key: int, token: int) -> int:
    """The key of a text that goes on with `token`; splitmix64's finaliser."""
    state = (key ^ (token + 1)) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ (state >> 30)) * 0x94D049BB133111EB & _MASK
    return state ^ (state >> 31)


@dataclass(frozen=True, slots=True)
class Script:
    """The laws of a replayed model by the key of the text so far, as a few tokens with their logits.

    Attributes:
        known: (tokens, logits) after each recorded text.
        others: (tokens, logits) after any other text, one of them chosen by the key.
    """

    known: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    others: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, key: int, tokens: Sequence[int], logits: Sequence[float]) -> None:
        """Below the text of `key`. Raises ValueError when another law was recorded there."""
        law = np.asarray(tokens), np.asarray(logits, np.float32)
        if key in self.known and not all(map(np.array_equal, law, self.known[key])):
            raise ValueError("two answers of one set have the same prompt and differ: record one of them")
        self.known[key] = law
        self.others.append(law)

    def below(self, key: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, logits) below the text of `key`."""
        found = self.known.get(key)
        return self.others[key % len(self.others)] if found is None else found


class ReplayedModel:
    """A `CausalLM` whose logits come from a `Script`; each pass advances the clock by a `PassTable`.

    Args:
        width: columns of the logits: the tokens that occur, numbered from 0. The config keeps the real vocabulary,
            since an engine reckons prices from it.
    """

    def __init__(self, config: ModelConfig, script: Script, width: int, table: PassTable, clock: VirtualClock) -> None:
        self.config, self._script, self._width = config, script, width
        self._table, self._clock = table, clock

    def new_cache(self, num_pages: int) -> PathCache:
        return PathCache(self.config, num_pages)

    def forward(self, rows: Rows, cache: PathCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """See `CausalLM.forward`; without taps."""
        for row in range(len(rows.token_ids)):
            cache.keys[rows.slots[row]] = below(_key_before(rows, row, cache), int(rows.token_ids[row]))
        logits = np.full((len(rows.logit_rows), self._width), _IMPOSSIBLE, np.float32)
        for out, row in zip(logits, rows.logit_rows, strict=True):
            tokens, values = self._script.below(cache.keys[rows.slots[row]])
            out[tokens] = values
        self._clock.now += self._table(len(rows.token_ids), float(rows.positions.mean()))
        return ForwardOutput(logits)


def _key_before(rows: Rows, row: int, cache: PathCache) -> int:
    """The key of the text before a row's token."""
    before = int(rows.positions[row]) - 1
    if before < 0:
        return _ROOT
    natural = int(rows.natural_lengths[row])
    if before < natural:
        return cache.keys[slot_of(rows.page_tables[rows.segments[row]], before)]
    return cache.keys[rows.branch_slots[row][before - natural]]


class NumberTokenizer:
    """Tokens as numbers: enough of `Tokenizer` for an engine that is given token ids and whose text nobody reads."""

    bos_token_id = None
    special_token_ids: frozenset[int] = frozenset()
    hidden_token_ids: frozenset[int] = frozenset()
    speaks_harmony = False

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.vocab_size, self.eos_token_ids = vocab_size, tuple(eos_token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [int(word) for word in text.split()]

    def token_bytes(self, token_id: int) -> bytes:
        return b"%d " % token_id

    def same_vocabulary(self, other: "NumberTokenizer") -> bool:
        return self.vocab_size == other.vocab_size


@dataclass(frozen=True, slots=True)
class NoWeights:
    """A `Checkpoint` without tensors."""

    config: ModelConfig
    fingerprint: str

    def names(self) -> tuple[str, ...]:
        return ()

    def tensor(self, name: str) -> np.ndarray:
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Costs:
    """What passes of the target and of the draft model take."""

    target: PassTable
    draft: PassTable


class Replay:
    """Engines around the answers of a recording at one temperature.

    Tokens are numbered anew, in the same order, without those that never occur: lookups only ask which are equal.

    Attributes:
        answers: as recorded, in the new numbers.
    """

    def __init__(self, recording: Recording, temperature: float, costs: Costs) -> None:
        answers = recording.at(temperature)
        self._recording, self._costs = recording, costs
        ids = {i for a in answers for i in (*a.prompt_ids, *a.answer_ids)} | set(recording.end_token_ids)
        ids |= {i for a in answers if a.laws for row in a.laws.tokens for i in row}
        self._number = {token: number for number, token in enumerate(sorted(ids))}
        self._ends = tuple(self._number[i] for i in recording.end_token_ids)
        self.answers = [self._renumbered(answer) for answer in answers]
        self._target, self._draft = Script(), Script()
        for old, new in zip(answers, self.answers, strict=True):
            self._learn(new, old)

    def _renumbered(self, answer: Answer) -> Answer:
        prompt, said = ([self._number[i] for i in ids] for ids in (answer.prompt_ids, answer.answer_ids))
        return Answer(answer.family, answer.temperature, prompt, said, answer.laws)

    def _learn(self, answer: Answer, recorded: Answer) -> None:
        """Put an answer into the scripts: the target is certain of it, the draft says its recorded laws."""
        key = _ROOT
        for token in answer.prompt_ids:
            key = below(key, token)
        for place, token in enumerate([*answer.answer_ids, None]):
            if token is not None:
                self._target.add(key, [token], [0.0])
            if recorded.laws:
                tokens = [self._number[i] for i in recorded.laws.tokens[place]]
                self._draft.add(key, tokens, np.log(np.maximum(recorded.laws.probs[place], 1e-30)).tolist())
            key = below(key, token) if token is not None else key

    def engine_for(self, speculative: Mapping[str, object] | None, clock: VirtualClock) -> Engine:
        """The engine that a user gets with ``LLM(..., speculative=speculative)``, its models replayed.

        The one place that reaches into the engine: its loader of draft models.
        """
        target = self._loaded("target", clock)
        config = EngineConfig(dtype=self._recording.dtype, profile="none", kv_cache_memory_bytes=_ROOM)
        wanted = SpeculativeConfig.of(speculative)  # type: ignore[arg-type]
        with patch.object(build, "load", lambda *_: self._loaded("draft", clock)):
            return build.build_engine(target, config, wanted, clock=clock)

    def _loaded(self, role: str, clock: VirtualClock) -> LoadedModel:
        is_target = role == "target"
        config = self._recording.target_config if is_target else self._recording.draft_config
        assert config is not None, "the recording has no draft laws"
        config = replace(config, bos_token_id=None, eos_token_ids=self._ends)
        script, table = (self._target, self._costs.target) if is_target else (self._draft, self._costs.draft)
        tokenizer = NumberTokenizer(len(self._number), self._ends)
        source = ModelSource(role, NoWeights(config, f"replayed {role}"), tokenizer)  # type: ignore[arg-type]
        return LoadedModel(source, ReplayedModel(config, script, len(self._number), table, clock))  # type: ignore[arg-type]
