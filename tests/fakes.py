"""Stand-ins for the seams: a checkpoint made of random numbers."""

import numpy as np

from paceline.models.config import ModelConfig
from paceline.models.tensor_names import tensor_shapes


def small_config(model_type: str = "llama", **changes) -> ModelConfig:
    """A transformer that runs in milliseconds and is wide enough for every kernel."""
    values = {
        "model_type": model_type, "vocab_size": 131, "hidden_size": 96, "intermediate_size": 160,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "norm_eps": 1e-5,
        "max_position_embeddings": 512, "tie_word_embeddings": True, "attention_bias": model_type == "qwen2",
    }  # fmt: skip
    return ModelConfig(**(values | changes))


class RandomCheckpoint:
    """Random weights of `config`, the same for the same seed."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        self.fingerprint = f"random-{config.model_type}-{abs(hash((config, seed))):x}"
        rng = np.random.default_rng(seed)
        self._tensors = {
            name: (1.0 * name.endswith("norm.weight") + 0.2 * rng.standard_normal(shape)).astype(np.float32)
            for name, shape in tensor_shapes(config).items()
        }

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def tensor(self, name: str) -> np.ndarray:
        return self._tensors[name]
