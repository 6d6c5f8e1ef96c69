"""Models that transformers saved as GGUF files, by the rules of llama.cpp's converter; names are the gguf package's.

Written apart from the reader, so that a mistake in its tables is seen. Not a converter for users.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from .tiny import add_pair, interleaved

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "phi3": "phi3", "smollm3": "smollm3", "olmo2": "olmo2", "granite": "granite", "gpt2": "gpt2", "olmo3": "olmo2",
    "olmoe": "olmoe", "ministral3": "mistral3", "exaone4": "exaone4", "glm": "chatglm", "glm4": "glm4",
    "gpt_oss": "gpt-oss", "seed_oss": "seed_oss", "ernie4_5": "ernie4_5", "starcoder2": "starcoder2",
    "stablelm": "stablelm", "cohere": "command-r", "cohere2": "cohere2", "gpt_neox": "gptneox",
    "gemma4_text": "gemma4", "qwen2_5_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl",
    "lfm2": "lfm2", "lfm2_moe": "lfm2moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next", "granitemoe": "granitemoe", "granitemoehybrid": "granitehybrid",
    "glm4_moe": "glm4moe", "dots1": "dots1", "ernie4_5_moe": "ernie4_5-moe",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), "deepseek2"),
    "arcee": "arcee", "nemotron": "nemotron", "jais2": "jais2", "hunyuan_v1_dense": "hunyuan-dense",
    "nemotron_h": "nemotron_h", "minicpm3": "minicpm3", "qwen3_vl_moe_text": "qwen3vlmoe", "minimax_m2": "minimax-m2",
}  # fmt: skip
IN_PAIRS = ("llama", "mistral", "mixtral", "smollm3", "granite", "granitemoe", "granitemoehybrid", "ministral3",
            "arcee")  # fmt: skip
DELTAS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_LLAMA_KEYS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length", "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "head_dim": "attention.key_length", "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count", "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale", "logits_scaling": "logit_scale",
    "n_layer": "block_count", "n_positions": "context_length", "n_embd": "embedding_length",
    "n_head": "attention.head_count", "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon", "layer_norm_eps": "attention.layer_norm_epsilon",
    "n_routed_experts": "expert_count", "moe_num_experts": "expert_count", "moe_k": "expert_used_count",
    "first_k_dense_replace": "leading_dense_block_count", "moe_layer_start_index": "leading_dense_block_count",
    "n_shared_experts": "expert_shared_count", "moe_num_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count", "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale", "norm_topk_prob": "expert_weights_norm",
    "moe_layer_interval": "interleave_moe_layer_step", "num_nextn_predict_layers": "nextn_predict_layers",
    "mtp_num_hidden_layers": "nextn_predict_layers",
    "use_parallel_residual": "use_parallel_residual", "logit_scale": "logit_scale",
}  # fmt: skip


def convert(
    path: Path, folder: Path, vocabulary: dict | None = None, storage: str | Callable[[str], str] = "F32"
) -> Path:  # fmt: skip
    """Write the model that transformers saved in `folder` to `path`, its matrices as `storage`, which may depend on
    GGUF's name of a matrix."""
    config, stored = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    if "text_config" in config:
        config = config["text_config"]
        stored = {n.replace("language_model.", ""): x for n, x in stored.items() if "visual." not in n}
    tensors = dict(_tensors(config, stored))
    architecture = _architecture(config)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_metadata(config) | (vocabulary or {})).items():
        add_pair(writer, key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)
    for name, values in (_rope_factors(config) | tensors).items():
        asked = storage if isinstance(storage, str) else storage(name)
        is_matrix = values.ndim > 1 and name.endswith(".weight") and "conv" not in name.split(".")[-2]
        kind = gguf.GGMLQuantizationType[asked if is_matrix else "F32"]
        stored = gguf.quants.quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def _architecture(config: dict[str, Any]) -> str:
    """As which architecture a model is written: Granite 4 without state spaces is Granite 3; Nemotron's has two."""
    if config["model_type"] == "granitemoehybrid" and "linear_attention" not in config["layer_types"]:
        return "granitemoe" if config["num_local_experts"] else "granite"
    if config["model_type"] == "nemotron_h" and "moe" in config["layers_block_type"]:
        return "nemotron_h_moe"
    return ARCHITECTURES[config["model_type"]]


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    kind = config["model_type"]
    values = {_LLAMA_KEYS[key]: value for key, value in config.items() if key in _LLAMA_KEYS and value is not None}
    if kind == "granitemoehybrid":
        values |= _granite4_metadata(config)
        if not config["num_local_experts"]:
            del values["expert_used_count"]
            values["feed_forward_length"] = config["shared_intermediate_size"]
    if kind == "nemotron":
        values["attention.layer_norm_epsilon"] = values.pop("attention.layer_norm_rms_epsilon")
    if kind == "nemotron_h":
        return _nemotron_metadata(config, values)
    if kind.startswith("lfm2"):
        attends = [layer == "full_attention" for layer in config["layer_types"]]
        values["attention.head_count_kv"] = [config["num_key_value_heads"] * one for one in attends]
        values["shortconv.l_cache"] = config["conv_L_cache"]
    if kind == "lfm2":
        values["feed_forward_length"] = _lfm2_width(config)
    if kind == "lfm2_moe":
        values |= {"leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": 2}
    if kind in DELTAS:
        heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
        values |= {
            "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": heads,
            "ssm.inner_size": size * heads, "rope.dimension_sections": [1, 1, 2, 0],
            "full_attention_interval": 1 + config["layer_types"].index("full_attention"),
        }  # fmt: skip
    if kind == "gpt2":
        return values | {"feed_forward_length": config["n_inner"] or 4 * config["n_embd"]}
    if ARCHITECTURES[kind] == "deepseek2":
        values = _latent_metadata(config, values)
    if kind == "minicpm3":
        ranks = {f"attention.{name}": config[name] for name in ("kv_lora_rank", "q_lora_rank")}
        rope = config["qk_rope_head_dim"]
        values |= ranks | {"rope.dimension_count": rope, "attention.key_length": config["qk_nope_head_dim"] + rope}
    if kind in ("glm4_moe", "dots1", "deepseek_v3", "minimax_m2"):  # GLM-4.7-Flash lacks it, which has a bias
        values["expert_gating_func"] = int(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "ernie4_5_moe":  # as the converter has it, which llama.cpp then does not use as the width
        values["expert_shared_feed_forward_length"] = config["intermediate_size"] // config["num_key_value_heads"]
    values["block_count"] += values.get("nextn_predict_layers", 0)
    if kind in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2", "dots1"):
        values.pop("attention.sliding_window", None)  # the converter leaves it out, llama.cpp has none there
    rope = config["rope_parameters"]
    full = rope.get("full_attention", rope)
    values["rope.freq_base"] = float(full["rope_theta"])
    if "alpha" in full:
        values["rope.freq_base"] *= full["alpha"] ** (config["head_dim"] / (config["head_dim"] - 2))
    if full["rope_type"] in ("linear", "yarn"):
        values |= {"rope.scaling.type": full["rope_type"], "rope.scaling.factor": float(full["factor"])}
    if full["rope_type"] == "yarn":
        values["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
    if "sliding_attention" in rope:
        values["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if full["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        growth = np.sqrt(1 + np.log(config["max_position_embeddings"] / original) / np.log(original))
        values |= {"rope.scaling.attn_factor": float(growth), "rope.scaling.original_context_length": original}
    if "partial_rotary_factor" in full or kind == "phi3":
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        values["rope.dimension_count"] = int(head_dim * full.get("partial_rotary_factor", 1.0))
    if kind in ("olmo3", "exaone4") and config["sliding_window"]:
        slides = [layer == "sliding_attention" for layer in config["layer_types"]]
        values["attention.sliding_window_pattern"] = slides
    if kind == "gemma4_text":
        return values | _gemma4_metadata(config)
    if kind == "ministral3":
        values["attention.temperature_scale"] = full["llama_4_scaling_beta"]
        values["rope.scaling.yarn_log_multiplier"] = full["mscale_all_dim"]
    return values


def _granite4_metadata(config: dict[str, Any]) -> dict[str, Any]:
    heads, dim = config["mamba_n_heads"], config["mamba_d_head"]
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    turns = {"rope.scaling.finetuned": config["position_embedding_type"] == "rope"}
    if all(attends):
        return turns
    return turns | {
        "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"], "ssm.inner_size": heads * dim, "ssm.time_step_rank": heads,
        "attention.head_count_kv": [config["num_key_value_heads"] * attend for attend in attends],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
    }  # fmt: skip


def _nemotron_metadata(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    kinds, heads = config["layers_block_type"], config["mamba_num_heads"]
    has_experts = "moe" in kinds
    width = config["moe_intermediate_size"] if has_experts else config["intermediate_size"]
    values |= {
        "block_count": len(kinds), "attention.value_length": config["head_dim"], "expert_weights_norm": True,
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds],
        "feed_forward_length": [width * (kind in ("mlp", "moe")) for kind in kinds],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"], "ssm.inner_size": heads * config["mamba_head_dim"],
        "ssm.time_step_rank": heads,
    }  # fmt: skip
    dense = {key: value for key, value in values.items() if not key.startswith("expert_")}
    return values if has_experts else dense


def _gemma4_metadata(config: dict[str, Any]) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    shared, inner = config["num_kv_shared_layers"], config["intermediate_size"]
    full = config["per_layer_config"][str(slides.index(False))]
    values = {
        "attention.sliding_window_pattern": slides, "attention.shared_kv_layers": shared,
        "attention.key_length": full["head_dim"], "attention.value_length": full["head_dim"],
        "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": full["head_dim"], "rope.dimension_count_swa": config["head_dim"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
    }  # fmt: skip
    if config["enable_moe_block"]:
        values["expert_used_count"] = config["top_k_experts"]
    if "num_key_value_heads" in full:
        both = full["num_key_value_heads"], config["num_key_value_heads"]
        values["attention.head_count_kv"] = [both[slide] for slide in slides]
    if config["use_double_wide_mlp"]:
        values["feed_forward_length"] = [inner * 2 if i >= len(slides) - shared else inner for i in range(len(slides))]
    return values


def _lfm2_width(config: dict[str, Any]) -> int:
    if not config["block_auto_adjust_ff_dim"]:
        return config["intermediate_size"]
    width, multiple = config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3), 32
    return multiple * -(-int(width) // multiple)


def _latent_metadata(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Latent attention as of one key head; `values` without layers for multi-token prediction, which are dropped."""
    del values["attention.head_count_kv"]
    values.pop("nextn_predict_layers", None)
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config["q_lora_rank"]:
        values["attention.q_lora_rank"] = config["q_lora_rank"]
    if "mlp_layer_types" in config:
        values["leading_dense_block_count"] = config["mlp_layer_types"].count("dense")
    if "mscale_all_dim" in config["rope_parameters"]:
        values["rope.scaling.yarn_log_multiplier"] = 0.1 * config["rope_parameters"]["mscale_all_dim"]
    return values | {
        "attention.head_count_kv": 1, "attention.kv_lora_rank": rank, "rope.dimension_count": rope,
        "attention.key_length": rank + rope, "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
    }  # fmt: skip


def _experts_one_by_one(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Gate, up and down of each expert, of tensors that hold all of a layer."""
    stem, _, part = name.partition(".experts.")
    for number, own in enumerate(values if part else ()):
        halves = {"down_proj": own} if part == "down_proj" else dict(
            zip(("gate_proj", "up_proj"), np.split(own, 2), strict=True)
        )  # fmt: skip
        for each, matrix in halves.items():
            yield f"{stem}.experts.{number}.{each}.weight", matrix
    if not part:
        yield name, values


def _keys_and_values_apart(config: dict[str, Any], name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A matrix per head for keys, transposed, and for values, in place of DeepSeek's ``kv_b_proj``."""
    if ".kv_b_proj." not in name:
        yield name, values
        return
    heads = values.reshape(config["num_attention_heads"], -1, values.shape[1])
    keys, rest = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
    yield name.replace(".kv_b_proj.", ".k_b_proj."), keys.transpose(0, 2, 1)
    yield name.replace(".kv_b_proj.", ".v_b_proj."), rest


def _rope_factors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"]) for length in ("long", "short")}
    if config["model_type"] == "gemma4_text":
        half = config["per_layer_config"][str(config["layer_types"].index("full_attention"))]["head_dim"] // 2
        turning = int(half * rope["full_attention"]["partial_rotary_factor"])
        return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (half - turning))}
    if rope.get("rope_type") != "llama3":
        return {}
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    context, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = context / rope["low_freq_factor"], context / rope["high_freq_factor"]
    factors = []
    for wavelength in 2 * np.pi / frequencies:
        smooth = (context / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1.0 if wavelength < high else factor if wavelength > low else between)
    return {"rope_freqs.weight": np.array(factors)}


def _tensors(config: dict[str, Any], stored: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    kind = config["model_type"]
    layers = config.get("num_hidden_layers") or config.get("n_layer") or len(config["layers_block_type"])
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == _architecture(config)),
                                     layers + _predicting(config))  # fmt: skip
    stored = {_of_prediction(name, layers): values for name, values in stored.items()}
    if kind == "nemotron_h":
        theirs = re.compile(r"backbone\.(.+)\.mixer\.experts\.")
        stored = {theirs.sub(r"model.\1.mlp.experts.", name): values for name, values in stored.items()}
        stored = dict(_state_space(config["n_groups"], name, values) for name, values in stored.items())
    if kind.startswith("granitemoe"):
        stored = dict(part for name, values in stored.items() for part in _granite4(config, name, values))
    if kind == "gpt_neox":
        stored = {name: _heads_together(config, name, values) for name, values in stored.items()}
    if kind == "qwen3_next":
        stored = dict(part for name, values in stored.items() for part in _projections_apart(config, name, values))
    if kind in DELTAS:
        changed = {name: _in_gguf(config, name, values, kind != "qwen3_next") for name, values in stored.items()}
        stored = {name.replace(".dt_bias", ".dt_proj.bias"): values for name, values in changed.items()}
    if kind == "lfm2_moe":
        stored = {name.replace(".feed_forward.experts.", ".mlp.experts."): values for name, values in stored.items()}
    if ARCHITECTURES[kind] == "deepseek2":
        stored = dict(part for name, values in stored.items() for part in _keys_and_values_apart(config, name, values))
    if kind == "qwen3_vl_moe_text":
        stored = dict(part for name, values in stored.items() for part in _experts_one_by_one(name, values))
    changes = {"gpt_oss": _gpt_oss, "gemma4_text": _gemma4, "granitemoe": dict, "granitemoehybrid": dict}
    stored = changes.get(kind, _experts_together)(stored)
    for name, values in stored.items():
        if name.endswith(".e_score_correction_bias"):
            name, values = name.replace("correction_bias", "correction.bias"), values.reshape(-1)
        if name.endswith(".expert_bias"):
            name = f"{name}.bias"
        found = names.get_name(name, (".weight", ".bias", ".scale")) or _of_entrance(name)
        assert found is not None, name
        yield found, _changed(config, name, values)


def _predicting(config: dict[str, Any]) -> int:
    return config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers") or 0


def _of_prediction(name: str, layers: int) -> str:
    """Qwen's names of a layer for multi-token prediction as those of a layer after the last one."""
    if not name.startswith("mtp."):
        return name
    for theirs, ours in (("layers.0.", ""), ("fc.", "eh_proj."), ("pre_fc_norm_embedding.", "enorm."),
                         ("pre_fc_norm_hidden.", "hnorm."), ("norm.", "shared_head.norm.")):  # fmt: skip
        if name.startswith(f"mtp.{theirs}"):
            return f"model.layers.{layers}.{ours}{name.removeprefix(f'mtp.{theirs}')}"
    return name


def _of_entrance(name: str) -> str | None:
    """The name of a tensor of such a layer, which the package lacks for some architectures."""
    number, _, part = name.removeprefix("model.layers.").partition(".")
    parts = {"eh_proj", "enorm", "hnorm", "shared_head.norm"}
    stem = part.removesuffix(".weight")
    return f"blk.{number}.nextn.{stem.replace('.', '_')}.weight" if stem in parts else None


def _changed(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    kind = config["model_type"]
    if kind in IN_PAIRS and (".q_proj." in name or ".k_proj." in name):
        key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
        return interleaved(values, config[key])
    if kind in ("gemma", "gemma2", "gemma3_text", "nemotron") and name.endswith("norm.weight"):
        return values + 1
    if kind in DELTAS and name.endswith("norm.weight") and "linear_attn" not in name:
        return values + 1
    if name.endswith(("conv.conv.weight", "conv1d.weight")):
        return values[:, 0]
    if kind == "gpt2" and ".h." in name and values.ndim == 2:
        return values.T
    return values.reshape(-1) if name.endswith("shared_expert_gate.weight") else values


def _in_gguf(config: dict[str, Any], name: str, values: np.ndarray, tiles: bool) -> np.ndarray:
    """Decay rates, and value heads of gated delta nets: the first of every key head, then the second ... if `tiles`."""
    part = name.removesuffix(".weight").rsplit(".", 1)[-1]
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]

    def turn(x: np.ndarray) -> np.ndarray:
        if not tiles:
            return x
        return np.ascontiguousarray(x.reshape(keys, heads // keys, -1, *x.shape[1:]).swapaxes(0, 1)).reshape(x.shape)

    first = 2 * keys * config["linear_key_head_dim"]
    if part == "A_log":
        return turn(-np.exp(values))
    if part in ("in_proj_z", "in_proj_a", "in_proj_b", "dt_bias"):
        return turn(values)
    if part in ("in_proj_qkv", "conv1d"):
        return np.concatenate([values[:first], turn(values[first:])])
    return turn(values.T).T if part == "out_proj" else values


def _projections_apart(config: dict[str, Any], name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Qwen3-Next's queries, keys, values and gates z of each key head as all queries, keys and values, and all z."""
    if ".in_proj_qkvz." not in name:
        yield name, values
        return
    keys, width = config["linear_num_key_heads"], config["linear_key_head_dim"]
    each = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    parts = np.split(values.reshape(keys, -1, values.shape[1]), np.cumsum([width, width, each]), axis=1)
    rows = [np.ascontiguousarray(part).reshape(-1, values.shape[1]) for part in parts]
    yield name.replace("qkvz", "qkv"), np.concatenate(rows[:3])
    yield name.replace("qkvz", "z"), rows[3]


def _granite4(config: dict[str, Any], name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Granite 4's feed-forward and experts under names of other families."""
    name, values = _state_space(config.get("mamba_n_groups", 1), name, values)
    stem, at, part = name.rpartition(".input_linear.")
    if not at:
        dense = ".mlp.shared_expert.down_proj." if config["num_local_experts"] else ".mlp.down_proj."
        name = name.replace(".shared_mlp.output_linear.", dense)
        yield name.replace(".block_sparse_moe.output_linear.", ".mlp.experts.down_proj."), values
        return
    shared = stem.endswith(".shared_mlp")
    own = "mlp.experts" if not shared else "mlp.shared_expert" if config["num_local_experts"] else "mlp"
    for which, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
        yield f"{stem.rpartition('.')[0]}.{own}.{which}_proj.{part}", half


def _state_space(groups: int, name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """A tensor of Mamba-2: numbers of heads in columns, norms of groups in rows."""
    if name.endswith((".A_log", ".D")):
        return name, (-np.exp(values) if name.endswith(".A_log") else values)[:, None]
    if name.endswith((".mamba.norm.weight", ".mixer.norm.weight")) and groups > 1:
        return name, values.reshape(groups, -1)
    return name.replace(".dt_bias", ".dt_proj.bias"), values


def _heads_together(config: dict[str, Any], name: str, values: np.ndarray) -> np.ndarray:
    """GPT-NeoX's queries, keys and values of each head as all queries, all keys, all values."""
    if ".query_key_value." not in name:
        return values
    heads = values.reshape(config["num_attention_heads"], 3, -1, *values.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(values.shape)


def _gemma4(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers of layers and experts as weights, and scales of the router and of experts as the converter names them."""
    out = {}
    for name, values in stored.items():
        named = name if name.endswith(".weight") else f"{name}.weight"
        for theirs, ours in (("router.scale.weight", "router.proj.scale"),
                             ("router.per_expert_scale.weight", "experts.down_proj.scale")):  # fmt: skip
            named = named.replace(theirs, ours)
        out[named] = values
    return out


def _gpt_oss(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gate and up of the experts apart, [experts, out, in]; attention sinks as a weight."""
    out = {}
    for name, values in stored.items():
        stem, _, part = name.rpartition(".")
        part, kind = (part.removesuffix("_bias"), "bias") if part.endswith("_bias") else (part, "weight")
        turned = values.swapaxes(1, 2) if kind == "weight" and ".experts." in name else values
        if part == "gate_up_proj":
            out[f"{stem}.gate_proj.{kind}"], out[f"{stem}.up_proj.{kind}"] = turned[:, ::2], turned[:, 1::2]
        elif part in ("down_proj", "sinks"):
            out[f"{stem}.{part}.{kind}"] = turned
        else:
            out[name] = values
    return out


def _experts_together(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts of a layer as one tensor [experts, out, in], under the names the converter gives them."""
    out, together = {}, {}
    for name, values in stored.items():
        if ".experts." not in name:
            out[name] = values
            continue
        stem, rest = name.split(".experts.")
        number, part = rest.split(".", 1)
        together.setdefault(f"{stem}.experts.{part}", {})[int(number)] = values
    for name, parts in together.items():
        renamed = name.replace("block_sparse_moe", "mlp") if "block_sparse_moe" in name else name
        for theirs, ours in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            renamed = renamed.replace(f".{theirs}.", f".{ours}.")
        out[renamed] = np.stack([parts[i] for i in range(len(parts))])
    return out
