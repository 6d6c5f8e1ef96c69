"""Prompt lookup on the device: the drafter's drafts, and steps with them that are launched before they are known."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig  # noqa: E402
from paceline.drafters.lookup.ngram import NGram  # noqa: E402
from paceline.engine.setup.build import build_engine  # noqa: E402
from paceline.models.base import PAGE_SIZE, Rows, slot_of  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor import foreseen as foreseen_module  # noqa: E402
from paceline.models.cuda_executor.lookups import MADE, Lookups, template_after  # noqa: E402
from paceline.models.cuda_executor.paged_rows import FIELDS, pack, packed_size  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.sampling import TokenTree  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.drafters.contexts import context  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end, small_config  # noqa: E402

RNG = np.random.default_rng(11)
SPARE, NUM_PAGES = 40 * PAGE_SIZE, 40


class Step:
    """A step of some requests: texts with drafts at their ends, some of which the picks accept."""

    def __init__(self, rng, num_requests, num_drafts, vocabulary=3, longest=60):
        pages = rng.permutation(NUM_PAGES).tolist()
        self.texts, self.drafts, self.picks, self.tables = [], [], [], []
        for _ in range(num_requests):
            text = rng.integers(0, vocabulary, rng.integers(1, longest)).tolist()
            drafts = rng.integers(0, vocabulary, rng.integers(0, num_drafts + 1)).tolist()
            right = [*drafts, 0][: rng.integers(0, len(drafts) + 1)]
            picks = [*right, *rng.integers(0, vocabulary, len(drafts) + 1 - len(right)).tolist()]
            count = -(-(len(text) + len(drafts) + 1) // PAGE_SIZE) + int(rng.integers(0, 2))
            self.tables.append([pages.pop() for _ in range(count)])
            self.texts.append(text)
            self.drafts.append(drafts)
            self.picks.append(picks)
        parts = [
            Part(table, len(text) - 1, [text[-1], *drafts])
            for table, text, drafts in zip(self.tables, self.texts, self.drafts, strict=True)
        ]
        self.rows = build_rows(parts)
        self.own = rng.permutation(len(self.rows.slots) + 3)[: len(self.rows.slots)]
        self.placed = torch.zeros(len(self.rows.slots) + 3, dtype=torch.int32)
        self.placed[self.own] = torch.tensor([pick for own in self.picks for pick in own], dtype=torch.int32)

    def slots_of(self, request, tokens):
        return slot_of(np.array(self.tables[request]), np.arange(len(tokens)))

    def remembered(self, kernels, options):
        lookups = Lookups(*options, torch.full((SPARE + 1,), 77, dtype=torch.int32), kernels)
        for request, (text, drafts) in enumerate(zip(self.texts, self.drafts, strict=True)):
            tokens = torch.tensor([*text, *drafts], dtype=torch.int32)
            slots = torch.from_numpy(self.slots_of(request, tokens)).int()
            lookups.remember(tokens, torch.zeros(1, dtype=torch.int32), slots)
        return lookups

    def advanced(self, kernels, options, num_drafts, num_rows):
        """[lines, rows] of the next pass."""
        template = template_after(self.rows, self.own, num_drafts, 10_000)
        out = np.full(packed_size(template, num_rows), 55, np.int32)
        pack(template, num_rows, SPARE, 1, out)
        packed = torch.from_numpy(out)
        self.remembered(kernels, options).advancing(template, self.placed, SPARE)(packed, num_rows)
        return packed[: len(FIELDS) * num_rows].view(len(FIELDS), num_rows).numpy()

    def wanted(self, request, options, num_drafts):
        """(tokens, positions, slots) of one request, the tokens by the drafter that runs on the host."""
        drafts, picks = self.drafts[request], self.picks[request]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == picks[accepted]:
            accepted += 1
        text = [*self.texts[request], *drafts[:accepted], picks[accepted]]
        longest, shortest, earliest = options
        drafter = NGram(longest, shortest, "earliest" if earliest else "latest")
        [tree] = drafter.propose([context(text, budget=num_drafts)])
        tokens = [text[-1], *tree.tokens, *[0] * (num_drafts - len(tree))]
        table, last = np.array(self.tables[request]), len(text) - 1
        limit = len(table) * PAGE_SIZE - 1
        positions = [min(last + row, limit) for row in range(num_drafts + 1)]
        slots = [slot_of(table, at) if last + row <= limit else SPARE for row, at in enumerate(positions)]
        return tokens, positions, [int(slot) for slot in slots]


@pytest.mark.parametrize("kernels", [False, True], ids=["reference", "kernel"])
@pytest.mark.parametrize("options", [(3, 1, False), (3, 1, True), (4, 2, False), (1, 1, True)])
def test_the_next_rows_are_those_of_the_drafter_on_the_host(options, kernels):
    if kernels:
        pytest.importorskip("triton")
    rng = np.random.default_rng(7)
    for _ in range(4 if kernels else 25):
        num_drafts = int(rng.integers(1, 6))
        step = Step(rng, int(rng.integers(1, 4)), num_drafts, vocabulary=int(rng.integers(2, 5)))
        size = num_drafts + 1
        found = step.advanced(kernels, options, num_drafts, len(step.texts) * size + 2)
        for request in range(len(step.texts)):
            tokens, positions, slots = step.wanted(request, options, num_drafts)
            lines = found[:, request * size : (request + 1) * size]
            assert lines[0].tolist() == tokens
            assert lines[1].tolist() == positions
            assert lines[2].tolist() == slots
            assert lines[3].tolist() == lines[4].tolist() == [at + 1 for at in positions]


def test_the_kernel_reads_texts_longer_than_its_block(monkeypatch):
    kernels = pytest.importorskip("paceline.models.cuda_executor.kernels.lookups")
    monkeypatch.setattr(kernels, "_BLOCK", 16)
    rng = np.random.default_rng(3)
    for earliest in (False, True):
        step = Step(rng, 2, 3, vocabulary=2, longest=200)
        both = [step.advanced(by_kernel, (3, 1, earliest), 3, 8) for by_kernel in (False, True)]
        assert both[0].tolist() == both[1].tolist()


def test_tokens_are_kept_by_slot_and_move_with_their_keys():
    lookups = Lookups(3, 1, False, torch.zeros(9, dtype=torch.int32), False)
    lookups.remember(torch.tensor([5, -1, -3]), torch.tensor([7, 8, 9]), torch.tensor([1, 4, 8]))
    assert lookups.texts.tolist() == [0, 5, 0, 0, 7, 0, 0, 0, 9]
    lookups.move(torch.tensor([1, 4]), torch.tensor([4, 1]))
    assert lookups.texts.tolist() == [0, 7, 0, 0, 5, 0, 0, 0, 9]


def test_nothing_is_made_where_the_next_token_may_have_no_page():
    rows = build_rows([Part((3,), 12, [1, 2, 3])])
    assert template_after(rows, np.arange(3), 2, 100) is not None
    rows = build_rows([Part((3,), 13, [1, 2, 3])])
    assert template_after(rows, np.arange(3), 2, 100) is None
    assert template_after(build_rows([Part((3,), 5, [1, 2])]), np.arange(2), 1, 7) is None
    assert template_after(build_rows([Part((3,), 5, [1, 2, 3])]), np.arange(3), 1, 100) is None, "more than K drafts"


CHECKPOINT = RandomCheckpoint(small_config(vocab_size=7, max_position_embeddings=256))
SOURCE = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
PROMPTS = {str(n): RNG.integers(0, 7, length).tolist() for n, length in enumerate((9, 20, 31, 14, 5, 40, 26))}


def answers(speculative, prompts=PROMPTS, params=None, **config):
    """(texts, the model) of an engine on CPU tensors, all steps of which that can be are launched ahead."""
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position", deterministic=True)
    model._foreseen.gain.assume(1e9, 1.0, 1e-9)
    options = {"executor": "cuda", "kv_cache_memory_bytes": 1 << 22, "profile": "none"} | config
    engine = build_engine(LoadedModel(SOURCE, model), EngineConfig(**options), speculative)
    for number, (name, prompt) in enumerate(prompts.items()):
        own = {"temperature": 0, "max_tokens": 24 + 9 * (number % 3), "ignore_eos": True} | (params or {})
        engine.add_request(name, prompt, SamplingParams(**own))
    found = {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}
    engine.scheduler.check_integrity()
    return found, model, engine


def ngram(**options):
    return SpeculativeConfig("ngram", policy="fixed", num_draft_tokens=4, options=options)


@pytest.fixture(scope="module")
def plain():
    return answers(None)[0]


@pytest.fixture(autouse=True)
def more_rows(monkeypatch):
    monkeypatch.setattr(foreseen_module, "FEW_ROWS", 64)


@pytest.mark.parametrize(("config", "options"), [
    ({}, {}), ({}, {"occurrence": "earliest"}), ({"prefix_caching": False}, {"prompt_lookup_max": 1}),
    ({"max_num_batched_tokens": 16}, {}), ({"max_num_batched_tokens": 16}, {"prompt_lookup_max": 1}),
    ({"kv_cache_memory_bytes": 1 << 19}, {"occurrence": "earliest"}),
])  # fmt: skip
def test_texts_are_plain_and_steps_with_drafts_are_launched_ahead(plain, options, config):
    found, model, engine = answers(ngram(**options), **config)
    assert found == plain
    assert engine.metrics.spec_decode_num_accepted_tokens > 20
    assert model._foreseen.num_taken > 8


def test_one_request_takes_nearly_every_pass_that_was_launched(plain):
    found, model, engine = answers(ngram(), {"3": PROMPTS["3"]})
    assert found["3"] == plain["3"]
    foreseen = model._foreseen
    assert foreseen.num_taken >= foreseen.num_foreseen - 1 and foreseen.num_taken > 3
    assert engine.metrics.spec_decode_num_accepted_tokens > 5


def test_adaptive_drafts_ask_for_some_of_the_rows(plain):
    found, model, _ = answers(replace(ngram(), policy="auto"))
    assert found == plain and model._foreseen.num_taken > 10


def test_drafts_of_drawn_requests_are_not_made_ahead():
    _, model, engine = answers(ngram(), params={"temperature": 0.8, "seed": 3})
    assert engine.metrics.spec_decode_num_accepted_tokens > 20
    assert model._foreseen.num_foreseen <= 2, "those before anything was drafted"


@pytest.mark.parametrize("num_requests", [5, 17])
def test_passes_without_drafts_are_launched_ahead_among_too_many_requests_for_drafts(num_requests, monkeypatch):
    monkeypatch.setattr(foreseen_module, "FEW_ROWS", 8)
    prompts = {str(n): [n % 7, (n * 3 + 1) % 7, 2] for n in range(num_requests)}
    calls = []
    propose = NGram.propose
    monkeypatch.setattr(NGram, "propose", lambda self, contexts: calls.append(0) or (
        propose(self, contexts) if len(calls) % 9 == 1 else [TokenTree()] * len(contexts)))  # fmt: skip
    found, model, engine = answers(ngram(), prompts)
    assert found == answers(None, prompts)[0]
    assert engine.metrics.spec_decode_num_draft_tokens > 0
    assert model._foreseen.num_taken > 10


def test_launches_in_vain_become_rare():
    """A prediction that is wrong every third token, whose drafts the device does not make."""
    prompt = {"3": PROMPTS["3"]}
    said = answers(None, prompt)[0]["3"]
    guess = [(token + 1) % 7 if number % 3 == 2 else token for number, token in enumerate(said)]
    found, model, engine = answers(ngram(), prompt, params={"prediction": guess})
    assert found["3"] == said and engine.metrics.spec_decode_num_draft_tokens > 0
    assert model._foreseen.num_foreseen - model._foreseen.num_taken <= 6


@pytest.mark.parametrize(("options", "most", "is_on"), [({}, 4, True), ({}, 31, True), ({}, 32, False),
                                                        ({"prompt_lookup_max": 17}, 4, False)])  # fmt: skip
def test_texts_are_looked_up_where_few_rows_are_enough(options, most, is_on):
    spec = SpeculativeConfig("ngram", policy="fixed", num_draft_tokens=most, options=options)
    _, _, engine = answers(spec, {"3": PROMPTS["3"]})
    assert (engine.cache.lookups is not None) == is_on
    assert engine.scheduler.config.num_lookahead_slots == 1 + 2 * most * is_on


def test_other_drafters_keep_no_texts_on_the_device(plain):
    found, _, engine = answers(SpeculativeConfig("suffix", policy="fixed", num_draft_tokens=4))
    assert found == plain and engine.cache.lookups is None


def test_drafts_that_the_device_does_not_make_are_verified_all_the_same(plain, monkeypatch):
    """A device whose lookups are wrong loses passes, not the text."""
    advancing = Lookups.advancing

    def spoiled(self, template, picks, spare_slot):
        run = advancing(self, template, picks, spare_slot)

        def wrong(packed, num_rows):
            run(packed, num_rows)
            packed[1:num_rows:2] = 3

        return wrong

    monkeypatch.setattr(Lookups, "advancing", spoiled)
    assert answers(ngram())[0] == plain


def test_made_lines_are_the_first():
    assert FIELDS[:MADE] == ("token_ids", "positions", "slots")
    assert isinstance(build_rows([Part((0,), 0, [1])]), Rows)
