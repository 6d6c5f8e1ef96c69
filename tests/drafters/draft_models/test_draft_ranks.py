"""Drafts on ranks of their own: texts are the target's own whatever the size, and the size follows from the theory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig  # noqa: E402
from paceline.drafters.draft_models.draft_model import DraftModel  # noqa: E402
from paceline.drafters.draft_models.draft_ranks import plans_of, ranks_of_draft  # noqa: E402
from paceline.engine.setup import build, load  # noqa: E402
from paceline.errors import InvalidParameter  # noqa: E402
from paceline.models.base import RunsOnRanks  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.torch_executor import TorchModel  # noqa: E402
from paceline.models.torch_executor.parallel import launch_model  # noqa: E402
from paceline.theory.distributed_draft import Chip  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end, small_config  # noqa: E402

TARGET, DRAFT = RandomCheckpoint(small_config()), RandomCheckpoint(small_config(num_hidden_layers=1), seed=1)
CONFIG = EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 22, profile="none", tensor_parallel_size=2)
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    "seeded": SamplingParams(temperature=1, seed=5, max_tokens=12, ignore_eos=True),
}


@pytest.fixture(scope="module")
def target():
    with launch_model(TARGET, 2, timeout=60) as model:
        yield LoadedModel(ModelSource("random", TARGET, ByteTokenizer()), model)  # type: ignore[arg-type]


def texts(target, params, drafter=None):
    spec = SpeculativeConfig("plain", policy="fixed", num_draft_tokens=3 if drafter else 0)
    engine = build.build_engine(target, CONFIG, spec, drafter=drafter)
    for number in range(2):
        prompt = np.random.default_rng(number).integers(0, 131, 5 + 9 * number).tolist()
        engine.add_request(str(number), prompt, params)
    found = {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}
    if drafter:
        assert engine.metrics.spec_decode_num_draft_tokens > 0
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_texts_are_plains_with_the_draft_on_one_rank_or_on_all(target, size, monkeypatch):
    source = ModelSource("small", DRAFT, ByteTokenizer())  # type: ignore[arg-type]
    for module in (build, load):
        monkeypatch.setattr(module, "resolve_model", lambda name, progress: source)
    chosen = ranks_of_draft(target.model, "float32", size)
    draft = build._load_draft(CONFIG, build.silent, "small", None, chosen).model
    assert isinstance(draft, RunsOnRanks) == (size > 1)
    for params in PARAMS.values():
        assert texts(target, params, DraftModel(draft, 64)) == texts(target, params)
    if size > 1:
        draft.close()


def test_a_target_on_ranks_knows_its_links(target):
    assert isinstance(target.model, RunsOnRanks)
    assert not isinstance(TorchModel(TARGET), RunsOnRanks)
    chip = target.model.chip(3)
    assert chip.bandwidth > 0 and chip.hop_seconds > 0
    whole = small_config(qk_norm=True, qk_norm_over="all")
    assert target.model.can_share(small_config()) and not target.model.can_share(whole)


class OnRanks:
    """A target whose chips are known."""

    config, tensor_parallel_size = small_config(num_hidden_layers=12), 2
    largest_cache_share, least_free_bytes = 0.5, None

    def __init__(self, chip, shares=True):
        self._chip, self._shares = chip, shares

    def can_share(self, config):
        return self._shares

    def chip(self):
        return self._chip


def test_the_faster_size_is_chosen_as_theory_says():
    slow, fast = (Chip(1e9, 1e12, hop) for hop in (1e-3, 1e-9))
    draft = DRAFT.config
    for chip, best in ((slow, 1), (fast, 2)):
        assert ranks_of_draft(OnRanks(chip), "float32", "auto")(draft) == best
        one, both = plans_of(draft, OnRanks.config, "float32", chip, 2)
        assert (both.draft_seconds < one.draft_seconds) == (best == 2)
        assert (one.tensor_parallel_size, both.tensor_parallel_size) == (1, 2)
    assert ranks_of_draft(OnRanks(fast, shares=False), "float32", "auto")(draft) == 1
    assert ranks_of_draft(TorchModel(TARGET), "float32", "auto")(draft) == 1
    assert ranks_of_draft(TorchModel(TARGET), "float32", 3)(draft) == 3


@pytest.mark.parametrize("asked", [0, -1, "all"])
def test_other_sizes_are_refused(asked):
    with pytest.raises(InvalidParameter, match="draft_tensor_parallel_size"):
        ranks_of_draft(TorchModel(TARGET), "float32", asked)
