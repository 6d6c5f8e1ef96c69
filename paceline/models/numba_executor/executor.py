"""`NumbaModel`: a `CausalLM` for CPUs. Checks a batch, provides buffers, and runs the compiled pass on its threads.

The logits it returns are in a buffer of the model and valid until its next pass: copy what must be kept.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.positions import rope_table_of, rotary_tables
from paceline.models.architecture.size import balanced_context
from paceline.models.base import ForwardOutput, KVCache, Rows, checked_layers
from paceline.models.compiled.kernel import machine_code
from paceline.models.dtypes import choose_dtype
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.numba_executor.arrays import Batch, Scratch, Shape, Weights
from paceline.models.numba_executor.attend import new_attention_scratch
from paceline.models.numba_executor.experts import ExpertScratch
from paceline.models.numba_executor.forward import num_counters
from paceline.models.numba_executor.gemm import PANEL, padded_rows
from paceline.models.numba_executor.kernel_cache import compiled_forward, compiled_race
from paceline.models.numba_executor.kv_cache import NumbaCache, StatefulCache, choose_cache_dtype, flat, new_kv_cache
from paceline.models.numba_executor.layer_inputs import InputScratch
from paceline.models.numba_executor.layer_table import layer_table
from paceline.models.numba_executor.operand import Operand, activations_of, new_operand
from paceline.models.numba_executor.races import UNDECIDED
from paceline.models.numba_executor.recurrent import NO_STATES, States, new_cells
from paceline.models.numba_executor.reference import Kept
from paceline.models.numba_executor.team import Team, new_slot
from paceline.models.numba_executor.varied_cache import VariedCache
from paceline.models.numba_executor.weights import BLOCKS, load_weights, shape_of
from paceline.models.rows import Part, build_rows
from paceline.sampling.answered import LARGEST, Question
from paceline.types import Progress

MakeOperand = Callable[[int], Operand]
"""Takes a number of activations, returns an operand for them in the form that a dtype's products read."""
_NOTHING = np.zeros(0, np.float32)
"""In the place of attention per page, and of inputs, in a pass without them."""
_SATURATING_ROWS, _ROWS_OF_AN_EXPERT = 128, 32
"""Rows of a pass, and of each expert on average, with which prompts are read nearly as fast as with any number: on two
cores at 0.87 to 1 of the best rate in w8a8, in bfloat16 with 32 rows already (`benchmarks/chunks.py`)."""
_INTEGER_SPEED = 3.6
"""Products of 8-bit numbers compared with attention, in operations per second. With bfloat16 weights both are equally
fast: the default model's rows take twice as long after 3,010 tokens (3,073 by their operations), in w8a8 after 845."""


class NumbaModel:
    """Every family of `models/architecture/families.py` on the CPU.

    Args:
        checkpoint: weights; converted on first use, memory-mapped afterwards.
        dtype: storage of the weights, ``bfloat16``, ``float16``, ``float32`` or ``int8`` with arithmetic in float32
            (``bfloat16`` with activations rounded to it where the processor multiplies such numbers, see `operand`); or
            ``w8a8``, where activations are rounded to 8 bits too and multiplied as integers; ``gguf``, the same with
            the blocks of a GGUF file as they are; or ``auto``, see `choose_dtype`.
        num_threads: threads of a pass; by default the physical cores that this process may use.
        progress: called with the progress of a conversion.
        kv_cache_dtype: storage of keys and values, ``float32``, ``float16`` or ``int8`` (lossy); ``auto`` takes float16
            where activations are rounded.
        load: gives the fields of `Weights`.
        team: threads of another model, to run on by turns; None for its own.

    Raises:
        InvalidParameter, UnsupportedModel, PacelineError: see `load_weights`.
    """

    head_builder = "paceline.models.numba_executor.heads.build"
    is_row_invariant = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: str = "bfloat16",
        num_threads: int | None = None,
        progress: Progress | None = None,
        kv_cache_dtype: str = "auto",
        load: Callable[..., dict[str, Any]] = load_weights,
        team: Team | None = None,
    ) -> None:
        if num_threads is not None and num_threads < 1:
            raise InvalidParameter(
                "num_threads", f"{num_threads} is not 1 or more", "leave it out to use every processor"
            )
        self._config = checkpoint.config
        self._shape = shape_of(checkpoint.config)
        self.dtype_choice = choose_dtype(dtype, checkpoint, "numba", "cpu")
        dtype = self.dtype_choice.name
        activations = activations_of(dtype)
        self._operand = partial(new_operand, kind=activations, fine=dtype == BLOCKS)
        default = "float32" if activations is np.float32 else "float16"
        self._cache_dtype = choose_cache_dtype(kv_cache_dtype, default, self._config.head_dims)
        no_tables = np.zeros(0, np.float32)
        config, layers = self._config, range(self._shape.layers)
        weights = Weights(
            **load(checkpoint, dtype, progress),
            sizes=layer_table(config),
            is_recurrent=np.array([i not in config.attention_layers for i in layers]),
            places=np.array(config.layer_places),
            windows=np.array([config.window(i) for i in layers]),
            rope_numbers=np.array([rope_table_of(config, i) for i in layers]),
            rope_cos=no_tables,
            rope_sin=no_tables,
        )
        self.saturating_rows = _saturating_rows(config)
        self.balanced_context = balanced_context(config) / (_INTEGER_SPEED if activations is np.int8 else 1)
        self._kept_shape, self._weights = Kept(self._shape), Kept(weights)
        self._team = team or Team(num_threads)
        self._layers = np.arange(self._shape.layers)
        self._eps = np.float32(self._config.norm_eps)
        self._tap_places: dict[tuple[int, ...], np.ndarray] = {}
        self._forward: Callable[..., None] | None = None
        self._forget_scratch()

    def _forget_scratch(self) -> None:
        self._scratch: Kept[Scratch] | None = None
        self._logits: dict[int, np.ndarray] = {}
        self._room = (0, 0, 0, 0)

    def with_layers(self, layers: Sequence[int]) -> "NumbaModel":
        """See `SkipsLayers`. Weights and threads are shared: one of the two runs at a time, `close` ends both."""
        view = copy.copy(self)
        view._layers = np.asarray(self._config.with_sources(checked_layers(layers, self._shape.layers)))
        view._forget_scratch()
        return view

    def with_vocabulary(self, size: int) -> "NumbaModel":
        """See `NarrowsVocabulary`. Weights and threads are shared as in `with_layers`."""
        view = copy.copy(self)
        scored = min(size, self._shape.scored)
        view._shape = self._shape._replace(vocab=padded_rows(scored), scored=scored)
        view._kept_shape = Kept(view._shape)
        view._forget_scratch()
        return view

    @property
    def config(self) -> ModelConfig:
        """See `CausalLM.config`."""
        return self._config

    @property
    def team(self) -> Team:
        """The threads of a pass; others may use them between passes."""
        return self._team

    @property
    def shared_weights(self) -> Weights:
        """The weights as the kernels read them, for draft heads that use the model's embedding and output head."""
        return self._weights.value

    @property
    def cache_dtype(self) -> str:
        """Storage of keys and values."""
        return self._cache_dtype

    @property
    def num_threads(self) -> int:
        """Threads that share each pass."""
        return self._team.num_threads

    @property
    def experts_touched(self) -> np.ndarray:
        """Number of experts used in each layer that has experts, in the latest pass; 0 before the first and for dense
        models."""
        if self._scratch:
            return self._scratch.value.experts.touched.copy()
        return np.zeros(self._shape.mixtures, np.int64)

    def close(self) -> None:
        """End the threads of the team."""
        self._team.close()

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the disk cache, before the first real pass."""
        output = self.forward(build_rows([Part([0], 0, [0])]), self.new_cache(1))
        for row in (output.logits[0], output.logits[0].astype(np.float64)):
            self.race(row, int(row.argmax()), LARGEST._replace(temperature=1.0))

    def new_cache(self, num_pages: int) -> NumbaCache | VariedCache:
        """See `CausalLM.new_cache`."""
        if self._config.layer_sizes:
            layers = [(one.num_key_value_heads, one.head_dim) for one in self._config.layer_sizes if one.has_keys]
            return VariedCache(layers, num_pages, self._cache_dtype)
        cache = new_kv_cache(self._shape, num_pages, self._cache_dtype)
        return StatefulCache(cache, self._config.recurrence) if self._config.recurrence else cache

    def forward(self, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """See `CausalLM.forward`; `cache` must come from this model's `new_cache`, and `rows` must not be empty."""
        return self._pass(rows, cache, taps, _NOTHING, _NOTHING)

    def forward_from(
        self, inputs: np.ndarray, rows: Rows, cache: KVCache, taps: tuple[int, ...] = ()
    ) -> ForwardOutput:  # fmt: skip
        """As `forward`, with `inputs` [M, hidden] entering the first layer in the place of embeddings."""
        return self._pass(rows, cache, taps, _NOTHING, np.ascontiguousarray(inputs, np.float32).reshape(-1))

    def race(self, logits: np.ndarray, best: int, question: Question) -> int | None:
        """See `RacesRows`."""
        if question.min_p > 0 or (question.top_k and question.top_p < 1):
            return None
        token = compiled_race()(
            logits, best, float(question.temperature), question.top_k, float(question.top_p), np.uint64(question.key)
        )
        return None if token == UNDECIDED else token

    def page_attention(self, rows: Rows, cache: KVCache) -> np.ndarray:
        """See `WeighsPages`."""
        size = len(rows.token_ids), self._shape.heads, rows.page_tables.shape[1]
        mass = np.zeros(size, np.float32)
        self._pass(rows, cache, (), mass.reshape(-1), _NOTHING)
        return mass.mean(axis=1) / len(self._layers)

    def _pass(
        self, rows: Rows, cache: KVCache, taps: tuple[int, ...], page_mass: np.ndarray, inputs: np.ndarray
    ) -> ForwardOutput:
        """One pass; adds each head's attention per page to `page_mass` [M * heads * pages], unless that is empty.

        The first layer is given `inputs` [M * hidden] in the place of embeddings, unless they are empty.
        """
        assert isinstance(cache, (NumbaCache, VariedCache))
        num_rows, asked = len(rows.token_ids), len(rows.logit_rows)
        context = max(rows.positions.tolist()) + 1
        self._extend_tables(context)
        states = self._states(rows, cache)
        kept = self._lend(num_rows, asked, context, len(taps))
        scratch = kept.value
        batch = Batch(
            rows.token_ids, rows.positions, rows.slots, rows.segments, rows.page_tables, rows.natural_lengths,
            rows.branch_slots, rows.logit_rows, rows.lengths, self._places_of(taps), self._layers, page_mass, inputs,
            states,
        )  # fmt: skip
        args = (
            self._team.num_threads, self._kept_shape, self._eps, self._weights, batch, kept,
            flat(cache.keys), flat(cache.values),
        )  # fmt: skip
        if self._forward is None:
            self._forward = machine_code(compiled_forward(), new_slot(), args)
        self._team.run(self._forward, *args)
        logits = self._logits.get(asked)
        if logits is None:
            vocab, scored = self._shape.vocab, self._shape.scored
            logits = self._logits[asked] = scratch.logits[: asked * vocab].reshape(asked, vocab)[:, :scored]
        peaks = scratch.peaks[: asked * self._team.num_threads : self._team.num_threads].tolist()
        if not taps:
            return ForwardOutput(logits, peaks=peaks)
        hidden = scratch.taps[: len(taps) * num_rows * self._shape.hidden]
        states = hidden.reshape(len(taps), num_rows, self._shape.hidden).copy()
        return ForwardOutput(logits, dict(zip(taps, states, strict=True)), peaks)

    def _states(self, rows: Rows, cache: NumbaCache | VariedCache) -> States:
        """The states of recurrent layers for a pass over `rows`."""
        if not isinstance(cache, StatefulCache):
            return NO_STATES
        store, whole = cache.store, len(self._layers) == self._shape.layers
        steps = store.plan(rows, whole)
        return States(steps.steps, steps.starts, store.states.reshape(-1), store.inputs.reshape(-1))

    def _places_of(self, taps: tuple[int, ...]) -> np.ndarray:
        """Index in `taps` of each possible tap [layers + 2], -1 for none; cached per `taps` and never modified."""
        known = self._tap_places.get(taps)
        if known is None:
            known = self._tap_places[taps] = np.full(self._shape.layers + 2, -1, np.int32)
            known[list(taps)] = range(len(taps))  # `NORMED` counts from the end
        return known

    def _extend_tables(self, context: int) -> None:
        """Rotary tables [tables, positions, rotary / 2], doubled when a longer context comes."""
        size = self._shape.rotary // 2 * self._shape.tables
        known = len(self._weights.value.rope_cos) // max(size, 1)
        if not size or context <= known:
            return
        cos, sin = rotary_tables(self._config, max(context, 2 * known, 1024))
        weights = self._weights.value._replace(rope_cos=cos.reshape(-1), rope_sin=sin.reshape(-1))
        self._weights = Kept(weights)

    def _lend(self, num_rows: int, asked: int, context: int, num_taps: int) -> Kept[Scratch]:
        """Buffers for the pass, kept between passes and enlarged when needed, with counters at zero.

        Contexts grow with every step, so buffers are made for twice the context length.
        """
        need = (num_rows, asked, context, num_taps * num_rows)
        if self._scratch is None or any(n > r for n, r in zip(need, self._room, strict=True)):
            need = (num_rows, asked, context if context <= self._room[2] else 2 * context, num_taps * num_rows)
            room = tuple(max(n, r) for n, r in zip(need, self._room, strict=True))
            scratch = Kept(_new_scratch(self._shape, self._operand, self._team.num_threads, *room))
            self._logits.clear()
            self._scratch, self._room = scratch, room  # last, and at once: an interrupt must not leave small buffers
        self._scratch.value.counters[:] = 0
        return self._scratch


def _saturating_rows(config: ModelConfig) -> int:
    """See `Saturates`; experts get rows enough each only where a pass has more."""
    experts = config.experts
    per_expert = experts.num_experts / experts.num_experts_per_tok if experts else 0
    return max(_SATURATING_ROWS, round(_ROWS_OF_AN_EXPERT * per_expert))


def _new_scratch(
    shape: Shape, operand: MakeOperand, num_threads: int, rows: int, asked: int, context: int, tapped_rows: int
) -> Scratch:
    """Buffers for passes up to these sizes; `operand` makes those that products read."""

    def floats(*size: int) -> np.ndarray:
        return np.empty(size, np.float32)

    depth = max(  # of all products
        shape.hidden, shape.inner, shape.shared_inner, shape.dense_inner, shape.heads * shape.head_dim,
        shape.latent.rank, shape.latent.query_rank, shape.recurrent.width, shape.layer_input,
    )  # fmt: skip
    return Scratch(
        counters=np.zeros(num_counters(shape), np.int64),
        hidden=floats(rows * shape.hidden),
        delta=floats(rows * shape.hidden if shape.apart else 0),
        normed=operand(max(rows, asked) * shape.hidden),
        qkv=floats(rows * shape.qkv),
        mixed=operand(rows * max(shape.heads * shape.head_dim, shape.latent.rank, shape.recurrent.width)),
        inner=operand(rows * max(shape.inner, shape.dense_inner, shape.latent.query_rank)),
        logits=floats(asked * shape.vocab),
        peaks=np.zeros(asked * num_threads, np.int64),
        taps=floats(tapped_rows * shape.hidden),
        row=floats(num_threads, max(shape.hidden, 2 * shape.head_dim if shape.latent.rank else 0)),
        gate_up=floats(num_threads, rows * 2 * PANEL),
        wide=floats(num_threads, PANEL * depth),
        attention=new_attention_scratch(num_threads, context, shape.head_dim),
        experts=_expert_scratch(shape, operand, rows),
        latent=floats(rows * (shape.latent.compressed + shape.latent.expanded)),
        mix=floats(rows * shape.recurrent.columns),
        gates=floats(rows * shape.recurrent.gates),
        cells=new_cells(num_threads, shape.recurrent),
        layer_inputs=_input_scratch(shape, operand, num_threads, rows),
    )  # fmt: skip


def _input_scratch(shape: Shape, operand: MakeOperand, num_threads: int, rows: int) -> InputScratch:
    width = shape.layer_input
    return InputScratch(
        inputs=np.empty(rows * shape.layers * width, np.float32),
        gate=np.empty(rows * width, np.float32),
        raised=operand(rows * width),
        row=np.empty((num_threads, shape.layers * width), np.float32),
    )


def _expert_scratch(shape: Shape, operand: MakeOperand, rows: int) -> ExpertScratch:
    def floats(size: int) -> np.ndarray:
        return np.empty(size, np.float32)

    def numbers(size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    pairs, shared_rows = rows * shape.top_k, rows * bool(shape.shared_inner)
    return ExpertScratch(
        logits=floats(rows * shape.experts),
        wanted=floats(rows * (shape.experts + shape.groups)),
        chosen=numbers(pairs),
        shares=floats(pairs),
        shared_shares=floats(shared_rows),
        places=numbers(pairs),
        order=numbers(pairs),
        starts=numbers(shape.experts + 1),
        active=numbers(shape.experts + 1),
        sorted=operand(pairs * shape.hidden),
        inner=operand(pairs * shape.inner),
        out=floats(pairs * shape.hidden),
        shared_inner=operand(shared_rows * shape.shared_inner),
        shared_out=floats(shared_rows * shape.hidden),
        touched=numbers(shape.mixtures),
    )
