"""Profiles from data sheets and measurements: sizes, the roofline, result files, and how far off each is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.placement import ParallelConfig, read_case
from paceline.placement.profiling import (
    DEVICES,
    Benchmark,
    DeviceSheet,
    ModelWork,
    compared,
    profile_from_sheet,
    read_all_benchmarks,
    read_benchmarks,
    read_device,
)
from paceline.placement.profiling.compare import scale_of, step_seconds, typical_error
from paceline.placement.search import plan

SMOL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
MIXTRAL = SMOL | {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
GLM_AIR = SMOL | {
    "model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
    "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_LITE = SMOL | {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_NEXT = SMOL | {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "vocab_size": 151936, "hidden_size": 2048,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
GEMMA4_E2B = SMOL | {
    "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 1536, "intermediate_size": 6144,
    "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
    "global_head_dim": 512, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "sliding_window": 512,
    "use_double_wide_mlp": True, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": None,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "rope_parameters": {
        "full_attention": {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    },
}  # fmt: skip
ROUND = DeviceSheet(1e14, 1e12, 1e12, compute_share=1.0, bandwidth_share=1.0, step_overhead=0.0)


def work(values=SMOL) -> ModelWork:
    return ModelWork.of(ModelConfig.from_hf(values))


def test_parameters_are_those_of_published_models():
    assert work().total_bytes / 2 == pytest.approx(134_515_008, rel=1e-3)
    mixtral = work(MIXTRAL)
    assert mixtral.total_bytes / 2 == pytest.approx(46.7e9, rel=1e-3)
    assert mixtral.operations(1, 0) / 2 == pytest.approx(12.9e9 - 0.13e9, rel=5e-3)  # active, less the embedding
    air = work(GLM_AIR)
    assert air.total_bytes / 2 == pytest.approx(106.85e9, rel=1e-3)
    assert air.operations(1, 0) / 2 == pytest.approx(12.8e9, rel=5e-3)
    lite = work(DEEPSEEK_LITE)
    assert lite.total_bytes / 2 == pytest.approx(15.7e9, rel=2e-3)
    assert lite.operations(1, 0) / 2 == pytest.approx(2.66e9 - 0.21e9, rel=5e-3)
    assert work().bytes_per_token == 2 * 30 * 3 * 64 * 2


def test_layers_that_differ_count_as_they_are():
    gemma = work(GEMMA4_E2B)
    assert gemma.operations(1, 0) / 2 == pytest.approx(2.3e9, rel=2e-2)  # its name: 2.3 billion are multiplied
    assert gemma.embedding == 262144 * 35 * 256
    assert gemma.bytes_per_token == 2 * (12 * 256 + 3 * 512) * 2  # of the first 15 layers, whose keys others read
    keys = 2 * (28 * 256 * 512 + 7 * 512 * 4096) * 2  # windows of 512 tokens; the last 20 layers read too
    assert gemma.request_bytes(4096) == keys
    assert gemma.operations(1, 4096) - gemma.operations(1, 0) == 4 * 8 * (28 * 256 * 512 + 7 * 512 * 4096)
    following = work(QWEN3_NEXT)
    assert following.request_bytes(10) == 10 * following.bytes_per_token + 2 * following.state_bytes
    assert following.total_bytes / 2 == pytest.approx(79.7e9, rel=1e-3)
    assert following.bytes_per_token == 2 * 12 * 2 * 256 * 2
    assert following.state_bytes == 36 * (3 * 8192 + 32 * 128 * 128) * 4


@pytest.mark.parametrize("values", [GEMMA4_E2B, QWEN3_NEXT])
def test_what_runs_in_one_process_is_planned_on_one_device(values):
    sizes = work(values)
    made = profile_from_sheet("whole", sizes, replace(ROUND, memory=1e12), seats=16)
    [(split, stages)] = made.entries.items()
    assert split == ParallelConfig()
    assert stages.weight_mem == (pytest.approx(sizes.total_bytes + 32 * sizes.state_bytes),)
    tokens = stages.tokens
    one_more = tokens.pass_seconds(2, 2, 1024) - tokens.pass_seconds(2, 1, 1024)
    assert one_more == pytest.approx(sizes.request_bytes(1024) / 1e12)
    with pytest.raises(InvalidParameter, match="finest split"):
        profile_from_sheet("whole", sizes, replace(ROUND, memory=sizes.total_bytes), seats=16)
    if sizes.state_bytes:
        with pytest.raises(InvalidParameter, match=r"seats: 256 requests at once have .* of states"):
            profile_from_sheet("whole", sizes, replace(ROUND, memory=1.2 * sizes.total_bytes), seats=256)


def test_a_mixture_reads_the_experts_that_its_rows_take():
    mixtral = work(MIXTRAL)
    per_expert = 2 * mixtral.expert
    assert mixtral.read_bytes(1) == pytest.approx(2 * mixtral.dense + 2 * per_expert)
    assert mixtral.read_bytes(1000) == pytest.approx(2 * mixtral.dense + 8 * per_expert)


def test_one_row_takes_its_bytes_and_many_rows_their_operations():
    made = profile_from_sheet("smol", work(), ROUND)
    tokens = made.entries[ParallelConfig()].tokens
    assert tokens.pass_seconds(1) == pytest.approx(work().read_bytes(1) / 1e12)
    assert tokens.pass_seconds(0, 1, 0, 2048) == pytest.approx(work().operations(2048, 0) / 1e14)
    more = tokens.pass_seconds(8, 8, 1024) - tokens.pass_seconds(8, 1, 1024)
    assert more == pytest.approx(7 * 1024 * work().bytes_per_token / 1e12)
    splits = {(split.tensor, split.pipeline) for split in made.entries}  # 3 heads of keys, 9 of queries, 30 layers
    assert splits == {(1, n) for n in range(1, 9)} | {(3, 1), (3, 2)}


def test_stages_may_have_a_layer_more_than_others():
    sizes = work(SMOL | {"num_hidden_layers": 61})
    made = profile_from_sheet("odd", sizes, ROUND)
    stages = made.entries[ParallelConfig(1, 2)]
    assert stages.weight_mem == pytest.approx([sizes.total_bytes * 31 / 61, sizes.total_bytes * 30 / 61])
    assert stages.kv_bytes == pytest.approx(sizes.bytes_per_token * 31 / 61)
    assert stages.latency[0] / stages.latency[1] == pytest.approx(31 / 30)
    assert stages.tokens.overlap == stages.tokens.prefill_overlap == pytest.approx(61 / 31)
    assert made.entries[ParallelConfig()].tokens.overlap is None
    half = profile_from_sheet("odd", sizes, replace(ROUND, memory=sizes.total_bytes * 0.56)).entries
    assert ParallelConfig(1, 2) not in half and ParallelConfig(1, 3) in half  # 31 layers are more than a half


def test_ranks_share_heads_and_feed_forward_evenly():
    made = profile_from_sheet("odd", work(SMOL | {"intermediate_size": 1000}), ROUND)
    assert {split.tensor for split in made.entries} == {1}


def test_what_fits_no_device_is_refused():
    with pytest.raises(InvalidParameter, match=r"1.17e\+10 bytes .* \(1 x 8, .* of 9e\+08 that"):
        profile_from_sheet("big", work(MIXTRAL), replace(ROUND, memory=1e9))
    with pytest.raises(InvalidParameter, match="h100"):
        read_device("nothing")


def test_a_device_is_known_in_capitals_too():
    assert read_device("H100") == read_device("h100") == DEVICES["h100"]


def run(n=8.0, per_token=0.01, prompt=100.0, output=50.0) -> Benchmark:
    return Benchmark("r", n, prompt, output, 0.1, per_token)


def test_an_engine_that_takes_twice_as_long_scales_the_profile_by_two():
    tokens = profile_from_sheet("smol", work(), DEVICES["l4"]).entries[ParallelConfig()].tokens
    runs = [run(n, 2 * step_seconds(tokens, run(n))) for n in (1.0, 8.0, 32.0)]
    found = compared(tokens, runs)
    assert [c.error for c in found] == pytest.approx([-0.5] * 3)
    assert [c.held_out_error for c in found] == pytest.approx([0.0] * 3, abs=1e-9)
    assert typical_error(compared(tokens.scaled(scale_of(tokens, runs)), runs)) == pytest.approx(0.0, abs=1e-9)
    assert compared(tokens, runs[:1])[0].held_out_error is None


VLLM = {
    "backend": "vllm", "completed": 100, "duration": 50.0, "total_input_tokens": 20_000, "total_output_tokens": 6_400,
    "mean_ttft_ms": 100.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0,
}  # fmt: skip
METRICS = {
    "request_concurrency": 4.0, "prompt_token_count": 200.0, "output_token_count": 64.0,
    "time_to_first_token_ms": 100.0, "inter_token_latency_ms": 10.0, "time_per_output_token_ms": 11.4,
}  # fmt: skip
GUIDELLM = {"benchmarks": [{"metrics": {name: {"successful": {"mean": value}} for name, value in METRICS.items()}}]}


def test_result_files_of_vllm_and_guidellm_say_the_same(tmp_path: Path):
    for name, values in (("vllm", VLLM), ("guidellm", GUIDELLM)):
        (tmp_path / name).write_text(json.dumps(values))
    (of_vllm,), (of_guidellm,) = read_benchmarks(tmp_path / "vllm"), read_benchmarks(tmp_path / "guidellm")
    assert of_vllm.concurrency == pytest.approx(100 / 50 * (0.1 + 63 * 0.01))  # Little's law
    for one in (of_vllm, of_guidellm):
        assert (one.prompt_tokens, one.output_tokens, one.first, one.per_token) == (200, 64, 0.1, 0.01)


@pytest.mark.parametrize("values", [
    {}, {"benchmarks": []}, {"benchmarks": [{}]}, VLLM | {"completed": 0}, VLLM | {"mean_tpot_ms": "x"},
    VLLM | {"total_input_tokens": 0},
])  # fmt: skip
def test_what_is_no_result_file_is_refused(values, tmp_path: Path):
    (tmp_path / "r.json").write_text(json.dumps(values))
    with pytest.raises(InvalidParameter):
        read_benchmarks(tmp_path / "r.json")


@pytest.mark.parametrize("field", ["mean_tpot_ms", "mean_ttft_ms", "duration", "total_output_tokens"])
def test_a_number_that_is_none_is_named_as_the_file_names_it(field, tmp_path: Path):
    (tmp_path / "r.json").write_text(json.dumps(VLLM | {field: -3}))
    with pytest.raises(InvalidParameter, match=f"^{field}: -3 in .*r.json"):
        read_benchmarks(tmp_path / "r.json")


def test_a_run_is_not_held_out_against_itself(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.json").write_text(json.dumps(VLLM))
    Path("s.json").write_text(json.dumps(VLLM | {"duration": 25.0}))
    assert len(read_all_benchmarks([Path("r.json"), Path("s.json")])) == 2
    with pytest.raises(InvalidParameter, match="given twice"):
        read_all_benchmarks([Path("r.json"), tmp_path / "r.json"])


TUNED = {
    "format": "paceline-profile", "version": 1, "model": "m", "fingerprint": "f", "dtype": "int8",
    "executor": "numba", "threads": 1, "machine": "here", "token_budget": 48,
    "seconds": {"0": {"1": 0.01, "64": 0.02}}, "prefill_seconds": {"0": {"16": 0.012}},
}  # fmt: skip


@pytest.mark.parametrize(("words", "budget"), [((), 48), (("--token-budget", "77"), 77)])
def test_a_token_budget_goes_before_the_tuned_one(words, budget, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    (tmp_path / "tuned.json").write_text(json.dumps(TUNED))
    done = CliRunner().invoke(app, [
        "profile", str(tmp_path), "--tuned", str(tmp_path / "tuned.json"), "--name", "m", "--json", *words,
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["profiles"]["m"][0]["tokens"]["token_budget"] == budget


@pytest.mark.parametrize(
    ("source", "says"), [("--tuned", "not compared with the times of requests"), ("--device", "off by a factor of 2")]
)
def test_only_a_data_sheet_may_be_off_by_a_factor(source, says, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    (tmp_path / "tuned.json").write_text(json.dumps(TUNED))
    value = "l4" if source == "--device" else str(tmp_path / "tuned.json")
    done = CliRunner().invoke(app, ["profile", str(tmp_path), source, value, "--name", "m"])
    assert done.exit_code == 0 and says in done.stdout.replace("\n", " ")


def test_the_command_writes_profiles_that_place_reads(tmp_path: Path):
    (tmp_path / "smol").mkdir()
    (tmp_path / "smol" / "config.json").write_text(json.dumps(SMOL))
    (tmp_path / "run.json").write_text(json.dumps(VLLM))
    out = tmp_path / "profiles.json"
    done = CliRunner().invoke(app, [
        "profile", str(tmp_path / "smol"), "--device", "l4", "--benchmark", str(tmp_path / "run.json"), "-o", str(out),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "off by" in done.output
    case = {
        "num_devices": 1, "mem_budget": 20e9, "duration": 10, "profiles": json.loads(out.read_text()),
        "models": [{"name": "a", "type": "smol", "rate": 1.0, "slo": 5, "prompt_tokens": 200, "output_tokens": 64}],
    }  # fmt: skip
    (tmp_path / "case.json").write_text(json.dumps(case))
    read = read_case(tmp_path / "case.json")
    tokens = read.profiles["smol"].entries[ParallelConfig()].tokens
    (measured,) = read_benchmarks(tmp_path / "run.json")
    assert step_seconds(tokens, measured) == pytest.approx(0.01)
    assert plan(read).slo_attainment > 0.9


def test_a_device_is_named_once(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    done = CliRunner().invoke(app, ["profile", str(tmp_path / "config.json")])
    assert isinstance(done.exception, InvalidParameter)


def test_a_model_is_named_as_elsewhere(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.models.resolve.resolve_config", lambda name, progress: ModelConfig.from_hf(SMOL))
    for name, called in (("smollm2-135m", "smollm2-135m"), ("hf:owner/odd:Q4_K_M", "odd:Q4_K_M")):
        done = CliRunner().invoke(app, ["profile", name, "--device", "l4", "--json"])
        assert done.exit_code == 0, done.output
        assert list(json.loads(done.stdout)["profiles"]) == [called]
