"""How an engine runs: fields are checked when they are written, before a model is loaded."""

import pytest

from paceline.config import EngineConfig, SpeculativeConfig, from_mapping
from paceline.errors import InvalidParameter


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0), ("max_num_seqs", 2.5), ("max_num_seqs", "a"), ("num_threads", 0), ("max_model_len", -1),
        ("max_num_batched_tokens", 0.5), ("kv_cache_memory_bytes", "1G"), ("memory_fraction", 1.5),
        ("memory_fraction", "half"), ("executor", "abacus"), ("scheduler", "fifo"), ("tensor_parallel_size", 0),
        ("pipeline_head_share", 1.5), ("pipeline_head_share", "all"),
        ("max_num_sequences", 3), ("prefix_caching", "no"), ("parse_special_tokens", 1), ("deterministic", None),
        ("profile", ""),
    ],
)  # fmt: skip
def test_an_engine_field_that_cannot_be_used_is_refused_by_name(field, value):
    with pytest.raises(InvalidParameter) as caught:
        from_mapping(EngineConfig, {field: value})
    assert caught.value.field == field


def test_the_device_decides_what_auto_means():
    chosen = {device: EngineConfig(device=device).chosen_executor for device in ("cpu", "cuda:1", "mps", "foo")}
    assert chosen == {"cpu": "auto", "cuda:1": "cuda", "mps": "torch", "foo": "torch"}
    with pytest.raises(InvalidParameter, match="device: 'cuda:0' is no place for the numba executor"):
        EngineConfig(executor="numba", device="cuda:0")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("num_draft_tokens", {"method": "ngram", "num_draft_tokens": -1}),
        ("num_draft_tokens", {"method": "ngram", "num_draft_tokens": "4"}),
        ("policy", {"method": "ngram", "policy": "best"}),
        ("model", {"method": "draft_model"}),
        ("method", {"num_draft_tokens": 4}),
        ("method", {"method": 5}),
        ("model", {"method": "draft_model", "model": 5}),
        ("rule", {"method": "ngram", "rule": ["auto"]}),
        ("rule_options", {"method": "ngram", "rule_options": 1}),
        ("options", {"method": "ngram", "options": None}),
        ("speculative", 5),
    ],
)
def test_a_speculative_field_that_cannot_be_used_is_refused_by_name(field, values):
    with pytest.raises(InvalidParameter) as caught:
        SpeculativeConfig.of(values)
    assert caught.value.field == field


def test_names_for_plain_decoding():
    assert [SpeculativeConfig.of(name) for name in (None, "none", "plain")] == [None] * 3


@pytest.mark.parametrize(
    ("make", "field", "remedy"),
    [
        (lambda: from_mapping(EngineConfig, {"speculative_config": {}}), "speculative_config", "use speculative"),
        (lambda: from_mapping(EngineConfig, {"gpu_memory_utilization": 0.9}), "gpu_memory_utilization", "memory_fract"),
        (lambda: SpeculativeConfig.of({"method": "ngram", "num_speculative_tokens": 4}), "num_speculative_tokens",
         "num_draft_tokens"),
        (lambda: SpeculativeConfig("ngram", num_speculative_tokens=4), "num_speculative_tokens", "num_draft_tokens"),
        (lambda: EngineConfig(dtype="half"), "dtype", "float16"),
        (lambda: from_mapping(EngineConfig, {"max_num_sequences": 3}), "max_num_sequences", "mean max_num_seqs"),
        (lambda: SpeculativeConfig.of({"method": "ngram", "polcy": "fixed"}), "polcy", "did you mean policy"),
    ],
)  # fmt: skip
def test_names_that_others_use_are_refused_with_ours(make, field, remedy):
    with pytest.raises(InvalidParameter) as caught:
        make()
    assert caught.value.field == field and remedy in caught.value.remedy
