"""Shards in one process: shares fit together, add up to the whole model, and impossible ones are refused."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.models.architecture.experts import Experts
from tests.fakes import RandomCheckpoint, latent_config, mixture_config, small_config

torch = pytest.importorskip("torch")

from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor.model import Stage, TorchModel  # noqa: E402
from paceline.models.torch_executor.shard import Shard, check_tensor_parallel_size  # noqa: E402

CONFIG = small_config(intermediate_size=168)
ROWS = build_rows([Part((1, 0), 0, [3, 1, 4, 1, 5, 9, 2, 6], logits="all")])


def shards(size, config=CONFIG):
    return [Shard(config, range(config.num_hidden_layers), rank, size) for rank in range(size)]


def test_shares_are_disjoint_and_complete():
    for what, total in (("heads", 6), ("inner", 168), ("vocabulary", 131)):
        shares = [range(total)[getattr(shard, what)] for shard in shards(6)]
        assert [unit for share in shares for unit in share] == list(range(total))


def test_key_heads_are_repeated_where_there_are_fewer_than_ranks():
    assert [shard.key_heads for shard in shards(6)] == [slice(0, 1)] * 3 + [slice(1, 2)] * 3
    for shard in shards(6):  # a rank's query heads belong to its key head
        assert shard.heads.start // 3 == shard.key_heads.start


def test_tensors_are_cut_where_the_heads_are():
    whole = np.arange(96 * 96).reshape(96, 96)
    second = shards(2)[1]
    np.testing.assert_array_equal(second.part("layers.0.attention.query.weight", whole), whole[48:])
    np.testing.assert_array_equal(second.part("layers.0.attention.out.weight", whole), whole[:, 48:])
    np.testing.assert_array_equal(second.part("layers.0.attention.out.bias", whole[0]), whole[0])
    np.testing.assert_array_equal(second.part("layers.0.attention_norm.weight", whole[0]), whole[0])


def test_shares_of_experts_and_sinks():
    config = mixture_config(
        experts=Experts(8, 2, True, shared_intermediate_size=64, bias=True), attention_sinks=True, mlp="gated_clamped"
    )
    first, second = (Shard(config, range(3), rank, 2) for rank in (0, 1))
    values, stem = np.arange(96 * 4.0).reshape(96, 4), "layers.0.feed_forward"
    np.testing.assert_array_equal(second.part(f"{stem}.experts.3.up.weight", values), values[48:])
    np.testing.assert_array_equal(second.part(f"{stem}.experts.3.down.weight", values.T), values.T[:, 48:])
    np.testing.assert_array_equal(second.part(f"{stem}.shared.gate.weight", values[:64]), values[32:64])
    np.testing.assert_array_equal(second.part(f"{stem}.router.weight", values), values)
    np.testing.assert_array_equal(second.part("layers.0.attention.sinks.weight", values[:6, 0]), values[3:6, 0])
    assert second.narrowed().experts.shared_intermediate_size == 32
    added = values[0]
    np.testing.assert_array_equal(first.part(f"{stem}.experts.3.down.bias", added), added)
    assert not second.part(f"{stem}.experts.3.down.bias", added).any()


STAGED = [CONFIG, replace(CONFIG, layers_without_mlp=(1,)), mixture_config("glm4_moe"), latent_config()]


@pytest.mark.parametrize("config", STAGED, ids=lambda config: config.model_type)
def test_stages_one_after_another_are_the_model_bit_by_bit(config):
    checkpoint = RandomCheckpoint(config)
    whole = TorchModel(checkpoint)
    cache = whole.new_cache(2)
    expected = whole.forward(ROWS, cache)
    first = Stage(checkpoint, "cpu", "float32", Shard(config, range(1)))
    last = Stage(checkpoint, "cpu", "float32", Shard(config, range(1, 3)))
    caches = first.new_cache(2), last.new_cache(2)
    with torch.inference_mode():
        x, _ = first.run(first.embed(ROWS), ROWS, caches[0])
        x, _ = last.run(x, ROWS, caches[1])
        _, logits = last.finish(x, ROWS.logit_rows)
    np.testing.assert_array_equal(logits.numpy(), expected.logits)
    slots = ROWS.slots.tolist()
    stored = np.concatenate([part.read(slots)[0] for part in caches])
    np.testing.assert_array_equal(stored, cache.read(slots)[0])
    assert first.num_bytes < last.num_bytes < whole._stage.num_bytes


@pytest.mark.parametrize(
    ("config", "size", "match"),
    [
        (CONFIG, 4, "6 attention heads.*split into 1, 2, 6"),
        (CONFIG, 0, "not 1 or more"),
        (small_config(num_attention_heads=12, num_key_value_heads=4), 6, "4 key heads"),
        (small_config(num_key_value_heads=3), 3, "160 units"),
        (mixture_config(experts=Experts(8, 2, True, shared_intermediate_size=33)), 2, "expert of 33.*split into 1$"),
        (small_config(qk_norm=True, qk_norm_over="all"), 2, "norm over all queries.*split into 1$"),
    ],
)
def test_impossible_degrees_are_refused(config, size, match):
    with pytest.raises(InvalidParameter, match=match) as caught:
        check_tensor_parallel_size(config, size)
    assert caught.value.field == "tensor_parallel_size"
