"""Where kernels are launched: Triton takes the current device, and an engine's thread begins with the first of all."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter  # noqa: E402

from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.heads.build import make_net  # noqa: E402
from paceline.models.loaded import LoadedModel  # noqa: E402
from paceline.models.resolve import ModelSource  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor.heads.prediction import _Borrowed  # noqa: E402
from paceline.sampling.answered import Question  # noqa: E402
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config  # noqa: E402
from tests.models.heads import records  # noqa: E402

from .current_device import CurrentDevice  # noqa: E402
from .test_recurrent import CONFIGS  # noqa: E402

TOKENS = [5, 60, 7, 100, 3, 9]
TAPS = np.random.default_rng(2).standard_normal((20, 3 * 96)).astype(np.float32)


@pytest.fixture
def launches(monkeypatch):
    """Names of kernels, by the device that was current when they were launched."""
    current, found = CurrentDevice(), {"cpu": set(), "another": set()}
    launch = interpreter.GridExecutor.__call__

    def noted(self, *args, **options):
        found[current.name].add(self.fn.__name__)
        return launch(self, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", noted)
    for name, module in list(sys.modules.items()):
        if name.startswith("paceline.models.cuda_executor.") and hasattr(module, "on_device"):
            monkeypatch.setattr(module, "on_device", current)
    return found


def target(config=records.TARGET, dtype="float16"):
    return CudaModel(RandomCheckpoint(config), "cpu", dtype, attention="triton")


def pass_and_draws():
    model = target()
    cache = model.new_cache(4)
    model.forward(build_rows([Part((0,), 0, TOKENS)]), cache, (0, -1))
    questions = [Question(1.0, 0.0, 0, 1.0, None, 5), Question(1.0, 0.0, 5, 0.9, None, 5), None]
    for place, question in enumerate(questions, start=6):
        model.begin_drawn(build_rows([Part((0,), place, [8])]), cache, (), [question])()
    model.page_attention(build_rows([Part((0,), 9, [8])]), cache)
    model.with_layers((0,)).draft_chains(build_rows([Part((0,), 9, [8], logits="last")]), cache, 3)


def chains_of_a_recurrent_model():
    """A pass for each level, since its rows are made on the host."""
    model = target(CONFIGS["short"], "float32")
    cache = model.new_cache(4)
    model.draft_chains(build_rows([Part((0,), 0, TOKENS, logits="last")]), cache, 3)


def logits_of_a_layer_that_borrows_the_output_head():
    _Borrowed(target(small_config()).stack).project(torch.randn(3, 96, dtype=torch.float16))


def chains_of_heads():
    loaded = LoadedModel(ModelSource("random", RandomCheckpoint(records.TARGET), ByteTokenizer()), target())  # type: ignore[arg-type]
    net = make_net(records.eagle3(), loaded)
    taps = TAPS[:, : 96 * len(net.record.config.taps)]
    net.draft_chains(build_rows([Part((0,), 0, TOKENS, logits="last")]), net.project(taps[:6]), net.new_cache(2), 3)
    net = make_net(records.medusa(), loaded)
    net.draft_chains(net.begin(TAPS[:1, :96]), np.array([5]), 2)
    net = make_net(records.dspark(), loaded)
    rows = [Part((0,), 0, TOKENS[: net.record.config.num_steps], logits="all")]
    net.draft_chains(build_rows(rows), net.new_cache(1))


RUNS = (pass_and_draws, chains_of_a_recurrent_model, logits_of_a_layer_that_borrows_the_output_head, chains_of_heads)


@pytest.mark.parametrize("run", RUNS)
def test_kernels_are_launched_on_the_models_own_device(launches, run):
    run()
    assert launches["cpu"] and not launches["another"]
