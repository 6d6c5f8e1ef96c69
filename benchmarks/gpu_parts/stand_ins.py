"""What a machine without network, weights and most packages can run: random weights, and drafts as good as is asked.

Speed does not depend on what weights are. A drafter that knows the answers, and is wrong at a given rate, has every
acceptance rate one wants to look at.
"""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

OPTIONAL = ("tokenizers", "safetensors")
"""Packages that the engine's modules name and this program never calls."""


def fill_in(names: tuple[str, ...] = OPTIONAL) -> list[str]:
    """Let modules that import absent packages be imported all the same; the packages that are absent."""
    absent = [name for name in names if find_spec(name) is None]
    for name in absent:
        sys.modules[name] = _Placeholder(name)
    return absent


class _Name(type):
    """A class of which every name is such a class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _Placeholder(ModuleType):
    """A package of which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_Name(self.__name__, (), {}), name)


def qwen_config(quick: bool) -> Any:
    """The shape of Qwen2.5-1.5B, or of a model that a CPU runs in milliseconds."""
    from paceline.models.config import ModelConfig

    if quick:
        sizes: dict[str, Any] = {
            "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        }  # fmt: skip
    else:
        sizes = {
            "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
            "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32_768,
        }  # fmt: skip
    return ModelConfig(
        "qwen2", **sizes, norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, attention_bias=True
    )  # fmt: skip


class RandomWeights:
    """A `Checkpoint` whose tensors are cut from one stretch of random numbers, so that billions take seconds."""

    storage = "BF16"
    _PRIME = 16_777_213
    """No tensor's width divides it: no two rows are alike."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        from paceline.models.tensor_names import tensor_shapes

        self.config, self.fingerprint = config, f"random-{seed}"
        self._shapes = tensor_shapes(config)
        most = min(self._PRIME, max(int(np.prod(shape)) for shape in self._shapes.values()) | 1)
        self._numbers = np.random.default_rng(seed).standard_normal(most, np.float32)

    def names(self) -> tuple[str, ...]:
        """See `Checkpoint`."""
        return tuple(self._shapes)

    def tensor(self, name: str) -> np.ndarray:
        """See `Checkpoint`: norms near 1, matrices whose products keep the size of what they multiply."""
        shape = self._shapes[name]
        start = sum(map(ord, name)) % len(self._numbers)
        values = np.resize(np.roll(self._numbers, -start) if start else self._numbers, shape)
        if len(shape) == 1:
            return (1.0 if name.endswith("norm.weight") else 0.0) + 0.1 * values
        return values * (shape[-1] ** -0.5)


class NumberTokenizer:
    """Enough of a tokenizer for an engine whose prompts are token ids: token i is the byte i % 128."""

    special_token_ids: frozenset[int] = frozenset()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id = None
    longest_token = 1
    has_chat_template = thinks = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Bytes."""
        return list(text.encode("ascii"))

    def token_bytes(self, token_id: int) -> bytes:
        """One letter."""
        return bytes([32 + token_id % 90])


def make_recorded(answers: dict[tuple[int, ...], list[int]], error_rate: float) -> Any:
    """A drafter that proposes the recorded answer of a prompt, each token wrong with chance `error_rate`.

    Args:
        answers: prompt to prompt and answer.
    """
    from paceline.drafters.base import BaseDrafter
    from paceline.sampling import TokenTree
    from paceline.speculation import DrafterTraits

    class Recorded(BaseDrafter):
        name = "recorded"
        traits = DrafterTraits(deterministic=True)

        def propose(self, contexts: Any) -> list[TokenTree]:
            return [TokenTree.chain(_guess(context)) for context in contexts]

    def _guess(context: Any) -> list[int]:
        said = len(context.token_ids)
        answer = answers[tuple(context.token_ids[: context.num_prompt_tokens])]
        if said > len(answer) or answer[said - 1] != context.token_ids[-1]:
            return []
        rng = np.random.default_rng([said, *context.token_ids[-2:]])
        truth = answer[said : said + context.budget]
        wrong = rng.random(len(truth)) < error_rate
        return [(token + 1) % 128 if is_wrong else token for token, is_wrong in zip(truth, wrong, strict=True)]

    return Recorded()
