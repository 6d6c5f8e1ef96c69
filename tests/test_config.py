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
    assert SpeculativeConfig.of({"method": "none"}) is None
    assert SpeculativeConfig.of(SpeculativeConfig("none")) is None


@pytest.mark.parametrize(
    ("make", "field", "remedy"),
    [
        (lambda: from_mapping(EngineConfig, {"speculative_config": {}}), "speculative_config", "use speculative"),
        (lambda: from_mapping(EngineConfig, {"gpu_memory_utilization": 0.9}), "gpu_memory_utilization", "memory_fract"),
        (lambda: SpeculativeConfig.of({"method": "ngram", "num_speculative_tokens": 4, "num_draft_tokens": 4}),
         "num_speculative_tokens", "leave one of the two out"),
        (lambda: SpeculativeConfig.of({"method": "ngram", "prompt_lookup_max": 4, "options": {"prompt_lookup_max": 4}}),
         "prompt_lookup_max", "leave one of the two out"),
        (lambda: SpeculativeConfig.of({"method": "ngram", "prompt_lookup_max": 4, "options": 5}), "options", "e.g."),
        (lambda: SpeculativeConfig.of({"num_speculative_tokens": 4}), "method", "name a drafter"),
        (lambda: SpeculativeConfig.of({"method": "ngram", "speculative_token_tree": "[]"}), "speculative_token_tree",
         "use one of"),
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


@pytest.mark.parametrize(
    ("vllms", "ours"),
    [
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 2},
         SpeculativeConfig("ngram", 4, options={"prompt_lookup_max": 5, "prompt_lookup_min": 2})),
        ({"model": "small", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1},
         SpeculativeConfig("auto", 3, "small", options={"draft_tensor_parallel_size": 1})),
        ({"method": "draft_model", "model": "small", "options": {"dtype": "int8"}, "draft_tensor_parallel_size": 2},
         SpeculativeConfig("draft_model", model="small", options={"dtype": "int8", "draft_tensor_parallel_size": 2})),
        ({"method": "ngram"}, SpeculativeConfig("ngram")),
    ],
)  # fmt: skip
def test_a_mapping_may_have_vllms_keys(vllms, ours):
    before = repr(vllms)
    assert SpeculativeConfig.of(vllms) == ours
    assert repr(vllms) == before  # the caller's mapping is as it was
