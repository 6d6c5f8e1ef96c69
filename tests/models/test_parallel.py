"""Parallel runs against one process: the same logits, taps and caches; what goes wrong is told, and ends everything."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter, WorkerDied
from paceline.models.base import NORMED, PAGE_SIZE
from paceline.models.rows import Part, build_rows, compaction
from tests.fakes import RandomCheckpoint, small_config

torch = pytest.importorskip("torch")

from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.parallel import (  # noqa: E402
    Assignment,
    Layout,
    ParallelModel,
    Rendezvous,
    launch_model,
    profile_stages,
    run_worker,
)
from paceline.models.torch_executor.parallel import rank as rank_module  # noqa: E402
from paceline.models.torch_executor.parallel.layout import balanced_partition, layer_weights  # noqa: E402
from paceline.models.torch_executor.parallel.messages import FIRST, Command, Message, decode, length_of_rest  # noqa: E402
from paceline.models.torch_executor.parallel.rank import split_rows  # noqa: E402

GPT2 = small_config("gpt2", norm="layer", mlp="gelu_tanh", position_embedding="learned", num_key_value_heads=6,
                    attention_bias=True, attention_out_bias=True, mlp_bias=True)  # fmt: skip
GRIDS = {
    (2, 1): small_config("qwen2", num_key_value_heads=1, tie_word_embeddings=False),  # the key head is with both ranks
    (1, 2): GPT2,
    (2, 2): small_config(attention_out_bias=True, mlp_bias=True),
}
PAGES = (3, 0, 5, 1)
TAPS = (0, 1, 2, 3)
TOLERANCE = 2e-4
"""States reach 20; a head or unit in the wrong place moves them by more than 1."""


@dataclass
class Pair:
    """The same weights over several processes and in one, each with a cache."""

    grid: tuple[int, int]
    parallel: object
    alone: object

    def __post_init__(self):
        self.caches = self.parallel.new_cache(8), self.alone.new_cache(8)

    def forward(self, rows, taps=()):
        ours = self.parallel.forward(rows, self.caches[0], taps)
        theirs = self.alone.forward(rows, self.caches[1], taps)
        self.close(ours.logits, theirs.logits)
        for layer, states in theirs.taps.items():
            self.close(ours.taps[layer], states)
        assert sorted(ours.taps) == sorted(taps)
        return ours

    def close(self, ours, theirs):
        exact = self.grid[0] == 1  # stages leave every sum as it is
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0 if exact else TOLERANCE)


@pytest.fixture(scope="module", params=GRIDS, ids=lambda grid: f"tp{grid[0]}-pp{grid[1]}")
def pair(request):
    tensor, pipeline = request.param
    checkpoint = RandomCheckpoint(GRIDS[request.param])
    with launch_model(checkpoint, tensor, pipeline, timeout=60) as model:
        yield Pair(request.param, model, TorchModel(checkpoint))
        pids = model.workers.pids
    assert len(pids) == tensor * pipeline - 1
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def random_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 131, count).tolist()


def test_prefill_decode_tree_and_compaction(pair):
    prompt, other = random_tokens(21), random_tokens(5, seed=1)
    pair.forward(build_rows([Part(PAGES, 0, prompt[:13], logits="none")]))
    pair.forward(build_rows([Part(PAGES, 13, prompt[13:], logits="last"), Part((7,), 0, other)]), TAPS)
    tree = build_rows([Part(PAGES, 21, [9, 5, 6, 7, 8], parents=[-1, 0, 0, 2, 1]), Part((7,), 5, [3])])
    pair.forward(tree, taps=(NORMED, 3, 1))
    for cache in pair.caches:  # the path of rows 0, 2, 3 is accepted
        cache.move(*compaction(PAGES, 21, [0, 2, 3]))
    after = build_rows([Part(PAGES, 24, [11], logits="last")])
    logits = pair.forward(after).logits
    slots = [PAGES[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in range(25)]
    for ours, theirs in zip(*(cache.read(slots) for cache in pair.caches), strict=True):
        pair.close(ours, theirs)
    fresh = pair.alone.new_cache(4)
    whole = pair.alone.forward(build_rows([Part(range(4), 0, [*prompt, 9, 6, 7, 11], logits="last")]), fresh)
    np.testing.assert_allclose(logits, whole.logits, atol=1e-4)


def test_micro_batches_are_the_same_pass(pair, monkeypatch):
    rows = build_rows([Part((2, 4, 6, 5), 0, random_tokens(50, seed=2)), Part((3, 1), 0, random_tokens(30, seed=3))])
    parts = _parts_counted(monkeypatch)
    monkeypatch.setattr(pair.parallel, "microbatch_rows", 32)  # enough for two
    ours = pair.parallel.forward(rows, pair.caches[0], taps=(1, 3))
    assert parts == [pair.grid[1]]
    theirs = pair.alone.forward(rows, pair.caches[1], taps=(1, 3))
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(ours.taps[1], theirs.taps[1], atol=TOLERANCE, rtol=0)


def test_passes_are_whole_where_that_was_asked_for(pair, monkeypatch):
    parts, asked = _parts_counted(monkeypatch), [Part((2, 4, 6, 5), 0, random_tokens(64, seed=n)) for n in range(2)]
    rows = build_rows([asked[0], asked[1]._replace(pages=(0, 1, 3, 7))])
    pair.forward(build_rows(asked[:1]))
    pair.parallel.forward(rows, pair.caches[0])
    monkeypatch.setattr(pair.parallel, "microbatch_rows", pair.parallel.microbatch_rows)  # as it was, afterwards
    pair.parallel.keep_passes_whole()
    pair.forward(rows)
    assert parts == [1, pair.grid[1], 1]


def _parts_counted(monkeypatch):
    """How many parts rank 0 cuts each further pass into."""
    counts = []

    def counted(rows, num_parts):
        counts.append(num_parts)
        return split_rows(rows, num_parts)

    monkeypatch.setattr(rank_module, "split_rows", counted)
    return counts


def test_layers_can_be_left_out_wherever_they_are(pair):
    rows = build_rows([Part(PAGES, 0, random_tokens(20, seed=4), logits="last")])
    for layers in ((0, 2), (1,)):
        ours, theirs = (model.with_layers(layers) for model in (pair.parallel, pair.alone))
        first = ours.forward(rows, ours.new_cache(6), taps=(2, NORMED))
        second = theirs.forward(rows, theirs.new_cache(6), taps=(2, NORMED))
        pair.close(first.logits, second.logits)
        assert sorted(first.taps) == sorted(second.taps)


def test_rows_may_see_fewer_keys_than_their_position(pair):
    rows = build_rows([Part(PAGES, 0, random_tokens(40, seed=5), logits="none")])
    few = build_rows([Part(PAGES, 40, [7, 8], logits="all")])
    sparse = replace(few, page_tables=few.page_tables[:, [0, 2, 3]], natural_lengths=few.natural_lengths - PAGE_SIZE,
                     num_keys=few.positions + 1 - PAGE_SIZE)  # fmt: skip
    pair.forward(rows)
    assert not np.allclose(pair.forward(sparse).logits, pair.forward(few).logits, atol=1e-3)


def test_caches_are_apart_and_one_that_is_dropped_is_freed(pair):
    rows = build_rows([Part((0,), 0, [1, 2, 3])])
    second = pair.parallel.new_cache(2)
    assert second.num_pages == 2
    shared = 2 if pair.grid == (2, 1) else 1  # both ranks hold the one key head
    assert second.num_bytes == pair.alone.new_cache(2).num_bytes * shared
    pair.parallel.forward(rows, second)
    before = pair.caches[0].read([0, 1, 2])[0]
    pair.parallel.forward(build_rows([Part((0,), 0, [4, 5, 6])]), second)
    np.testing.assert_array_equal(pair.caches[0].read([0, 1, 2])[0], before)
    own = pair.parallel.ranks.joined()[1]._caches
    number = second.number
    del second
    pair.caches[0].read([0])
    assert number not in own


def test_a_pass_begins_before_the_results_of_another_are_asked_for(pair):
    """Two threads: whoever is first asks for its results only once the other's pass has begun too."""
    if pair.grid[1] == 1:
        pytest.skip("one stage takes one pass at a time")
    batches = [build_rows([Part((0, 1), 0, random_tokens(20, seed=seed), logits="last")]) for seed in (6, 7)]
    expected = [pair.alone.forward(rows, pair.alone.new_cache(2)).logits for rows in batches]
    caches = [pair.parallel.new_cache(2) for _ in batches]
    rank, begun, changed = pair.parallel.ranks.joined()[1], [], threading.Condition()
    begin = rank.begin

    def told(message):
        rest = begin(message)
        if message.command is not Command.FORWARD:
            return rest
        with changed:
            begun.append(message)
            number = len(begun)
            changed.notify_all()

        def waiting():
            with changed:
                assert changed.wait_for(lambda: len(begun) >= number + number % 2, timeout=30)
            return rest()

        return waiting

    rank.begin = told
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(5):
                outputs = pool.map(pair.parallel.forward, batches, caches)
                for output, logits in zip(outputs, expected, strict=True):
                    pair.close(output.logits, logits)
    finally:
        del rank.begin


def test_threads_that_share_a_model_get_their_own_results(pair):
    def decode(seed):
        cache, tokens = pair.parallel.new_cache(2), random_tokens(24, seed)
        return [pair.parallel.forward(build_rows([Part((0, 1), i, [t])]), cache).logits for i, t in enumerate(tokens)]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(decode, range(6)))
    for seed, logits in enumerate(found):
        rows = build_rows([Part((0, 1), 0, random_tokens(24, seed))])
        whole = pair.alone.forward(rows, pair.alone.new_cache(2)).logits
        np.testing.assert_allclose(np.concatenate(logits), whole, atol=TOLERANCE, rtol=0)


def test_the_profile_has_every_stage(pair):
    profile = profile_stages(pair.parallel, num_tokens=20, batch_sizes=(1, 2), repeats=2)
    tensor, pipeline = pair.grid
    whole = sum(w.nbytes for w in pair.alone._stage.stack.parameters())
    assert len(profile.latency) == pipeline and min(profile.latency) > 0
    assert len(profile.weight_mem) == pipeline and max(profile.weight_mem) < whole
    assert sum(profile.weight_mem) * tensor >= whole
    assert profile.to_json() == {
        "op": tensor,
        "pp": pipeline,
        "latency": list(profile.latency),
        "weight_mem": list(profile.weight_mem),
        "batch_latency": {"2": list(profile.batch_latency[2])},
    }


def test_bad_rows_are_refused_and_the_model_goes_on(pair):
    rows = build_rows([Part((0,), 0, [131])])
    with pytest.raises(InvalidParameter, match="token_ids"):
        pair.parallel.forward(rows, pair.caches[0])
    with pytest.raises(InvalidParameter, match="cache"):
        pair.parallel.forward(rows, pair.caches[1])
    pair.forward(build_rows([Part(PAGES, 0, [1, 2])]))


def test_a_killed_worker_is_told_and_ends_the_others():
    model = launch_model(RandomCheckpoint(small_config()), 1, 3, timeout=60)
    cache, rows = model.new_cache(1), build_rows([Part((0,), 0, [1, 2])])
    model.forward(rows, cache)
    first, last = model.workers.pids
    os.kill(last, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="rank 2 was ended by signal 9"):
        for _ in range(3):
            model.forward(rows, cache)
    assert time.monotonic() - started < 30
    assert not any(os.path.exists(f"/proc/{pid}") for pid in (first, last))
    with pytest.raises(WorkerDied, match="earlier failure"):
        model.forward(rows, cache)
    model.close()


def test_a_killed_worker_ends_the_passes_of_all_threads():
    model = launch_model(RandomCheckpoint(small_config()), 1, 2, timeout=60)
    rows = build_rows([Part((0,), 0, [1, 2])])

    def until_it_fails(cache):
        with pytest.raises(WorkerDied):
            while True:
                model.forward(rows, cache)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(until_it_fails, model.new_cache(1)) for _ in range(2)]
        time.sleep(0.2)
        os.kill(model.workers.pids[0], signal.SIGKILL)
        for one in running:
            one.result(timeout=30)
    model.close()


def test_ranks_that_somebody_else_started_meet():
    checkpoint = RandomCheckpoint(small_config())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meeting = Rendezvous(port=probe.getsockname()[1], timeout=60)
    layout = Layout.of(checkpoint.config, pipeline_parallel_size=2)
    ranks = [Assignment(checkpoint, layout, rank, meeting, "cpu", "float32") for rank in range(2)]
    other = multiprocessing.get_context("spawn").Process(target=run_worker, args=(ranks[1],))
    other.start()
    rows = build_rows([Part((0,), 0, [1, 2])])
    with ParallelModel(ranks[0]) as model:
        ours = model.forward(rows, model.new_cache(1)).logits
    alone = TorchModel(checkpoint)
    np.testing.assert_array_equal(ours, alone.forward(rows, alone.new_cache(1)).logits)
    other.join(20)
    assert other.exitcode == 0


class Damaged(RandomCheckpoint):
    """Weights that another process cannot read."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.tensor = self.refuse

    def refuse(self, name):
        raise ValueError(f"{name} is damaged")


def test_a_worker_that_cannot_start_shows_its_traceback():
    with pytest.raises(WorkerDied, match=r"rank 1 ended with status 1(?s:.*)ValueError: .* is damaged"):
        launch_model(Damaged(small_config()), 2, timeout=60)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("tensor_parallel_size", {"tensor_parallel_size": 4}),
        ("pipeline_parallel_size", {"pipeline_parallel_size": 4}),
        ("pipeline_parallel_size", {"pipeline_parallel_size": 0}),
        ("pipeline_layer_partition", {"pipeline_parallel_size": 2, "layer_partition": (3, 1)}),
        ("device", {"pipeline_parallel_size": 2, "device": "cuda:0"}),
        ("device", {"pipeline_parallel_size": 3, "device": "cuda"}),
    ],
)
def test_bad_degrees_are_refused_before_anything_starts(field, changes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InvalidParameter) as caught:
        launch_model(RandomCheckpoint(small_config()), **changes)
    assert caught.value.field == field


def test_ranks_lie_stage_by_stage():
    layout = Layout.of(small_config(), 2, 2, (1, 2))
    assert layout.world_size == 4
    assert [layout.stage_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert list(layout.ranks_of(-1)) == [2, 3]
    assert [layout.shard(rank).layers for rank in (1, 2)] == [range(1), range(1, 3)]
    assert [layout.shard(rank).tensor_rank for rank in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("vocab_size", [131, 2000])
def test_the_partition_is_the_best_there_is(vocab_size):
    config = small_config(num_hidden_layers=6, vocab_size=vocab_size)
    layer, head = layer_weights(config)[0], vocab_size * config.hidden_size

    def heaviest(counts):
        return max(*(layer * n for n in counts[:-1]), layer * counts[-1] + head)

    every, found = [(a, b, 6 - a - b) for a in range(1, 5) for b in range(1, 6 - a)], balanced_partition(config, 3)
    assert (heaviest(found), max(found)) == min((heaviest(counts), max(counts)) for counts in every)
    assert balanced_partition(config, 1) == (6,)


def test_where_the_head_is_heaviest_layers_are_spread_evenly():
    config = small_config(num_hidden_layers=28, vocab_size=6 * layer_weights(small_config())[0] // 32)
    layout = Layout.of(config, 2, 8)
    assert sorted(map(len, layout.stages)) == [1, 3, 4, 4, 4, 4, 4, 4]
    assert layout.largest_cache_share == 4 / 28 / 2


def test_the_head_counts_as_much_as_is_said():
    config = small_config(num_hidden_layers=6, vocab_size=2000)
    layer, head = layer_weights(config)[0], 2000 * config.hidden_size
    assert 1 < head / layer < 3
    assert balanced_partition(config, 2) == (4, 2)
    assert balanced_partition(config, 2, head_share=0.0) == (3, 3)
    assert [len(stage) for stage in Layout.of(config, 1, 2, head_share=0.0).stages] == [3, 3]


def test_split_rows_keeps_every_row_and_its_question():
    rows = build_rows([Part((0, 1), 0, random_tokens(20), logits="last"), Part((2,), 3, [1, 2, 3], parents=[-1, 0, 0])])
    parts = list(split_rows(rows, 4))
    assert [begin for begin, _ in parts] == [0, 5, 11, 17]
    for name in ("token_ids", "positions", "slots", "segments", "natural_lengths", "branch_slots"):
        joined = np.concatenate([getattr(part, name) for _, part in parts])
        np.testing.assert_array_equal(joined, getattr(rows, name))
    asked = np.concatenate([begin + part.logit_rows for begin, part in parts])
    np.testing.assert_array_equal(asked, rows.logit_rows)
    row = 22 - parts[3][0]
    np.testing.assert_array_equal(parts[3][1].key_slots(row), rows.key_slots(22))


def test_messages_arrive_as_they_were_sent():
    arrays = (np.array([1, 2], np.int32), np.zeros((2, 0), np.int32), np.array([[3], [4]], np.int32))
    long = tuple(np.arange(count, dtype=np.int32) for count in (FIRST - 6, 2, 3))
    lengths = (0, 0, 0, 7)
    for message, length in zip([Message(Command.CLOSE), *(Message(Command.FORWARD, each) for each in
                               (arrays, long[:1], long))], lengths, strict=True):  # fmt: skip
        first, rest = message.tensors()
        assert len(first) == FIRST and length_of_rest(first) == len(rest) == length
        found = decode(first, rest)
        assert found.command is message.command
        for ours, theirs in zip(found.arrays, message.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.shape == theirs.shape
    assert replace(Message(Command.MOVE), arrays=arrays).arrays == arrays


@pytest.mark.weights
def test_the_default_model_over_two_stages():
    """Drafted over two processes, plain in one: the same answer, on real weights in float32."""
    from paceline import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=16)
    texts = ["1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", "The capital of France is"]
    alone = LLM("smollm2-135m", speculative=None, executor="torch", dtype="float32").generate(texts, params)
    drafts = {"method": "ngram", "num_draft_tokens": 3, "policy": "fixed"}
    with LLM("smollm2-135m", speculative=drafts, pipeline_parallel_size=2, dtype="float32") as llm:
        drafted = llm.generate(texts, params)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in alone]
    assert sum(output.stats.num_accepted_tokens for output in drafted) > 0
