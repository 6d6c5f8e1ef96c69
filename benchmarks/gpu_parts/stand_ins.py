"""Replacements for a machine without network, weights and most packages: random weights, drafts of a chosen quality.

Speed does not depend on the values of weights. A drafter that knows the answers, and is wrong at a given rate, can have
any acceptance rate.
"""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch

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


def qwen_config(shape: str) -> Any:
    """The shape of Qwen2.5-1.5B or 7B, or of a model that a CPU runs in milliseconds: ``1.5b``, ``7b``, ``quick``."""
    from paceline.models.architecture.config import ModelConfig

    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings",
    )  # fmt: skip
    sizes = {
        "quick": (211, 64, 96, 2, 4, 2, 16, 512),
        "1.5b": (151_936, 1536, 8960, 28, 12, 2, 128, 32_768),
        "7b": (152_064, 3584, 18_944, 28, 28, 4, 128, 32_768),
    }[shape]
    return ModelConfig(
        "qwen2", **dict(zip(names, sizes, strict=True)), norm_eps=1e-6, rope_theta=1e6,
        tie_word_embeddings=shape != "7b", attention_bias=True,
    )  # fmt: skip


def plain_config(is_quick: bool) -> Any:
    """Four layers without anything that only some families have."""
    from paceline.models.architecture.config import ModelConfig

    hidden, inner, size = (64, 96, 16) if is_quick else (1024, 2048, 128)
    return ModelConfig(
        "llama", vocab_size=211 if is_quick else 4096, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=size, max_position_embeddings=512, norm_eps=1e-6,
        rope_theta=1e6, tie_word_embeddings=True,
    )  # fmt: skip


def mixture_config(is_quick: bool) -> Any:
    """Six layers of the shape of Qwen3-30B-A3B, 128 experts of which a token takes 8, or a mixture for a CPU."""
    from paceline.models.architecture.config import ModelConfig
    from paceline.models.architecture.experts import Experts

    hidden, inner, layers, heads, count = (64, 32, 2, 4, 8) if is_quick else (2048, 768, 6, 32, 128)
    return ModelConfig(
        "qwen3_moe", vocab_size=211 if is_quick else 151_936, hidden_size=hidden, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // (2 if is_quick else 8),
        head_dim=16 if is_quick else 128, max_position_embeddings=512 if is_quick else 32_768, norm_eps=1e-6,
        rope_theta=1e6, tie_word_embeddings=True, qk_norm=True,
        experts=Experts(count, 2 if is_quick else 8, norm_topk_prob=True),
    )  # fmt: skip


class RandomWeights:
    """A `Checkpoint` whose tensors are cut from one stretch of random numbers, so that billions take seconds.

    Args:
        spoken: number of tokens that have embeddings; with tied embeddings no other token is ever the most probable, so
            texts with few of them soon repeat themselves.
    """

    storage = "BF16"
    _PRIME = 16_777_213
    """No tensor's width divides it: no two rows are alike."""

    def __init__(self, config: Any, seed: int = 0, spoken: int | None = None) -> None:
        from paceline.models.architecture.tensor_names import tensor_shapes

        self.config, self.fingerprint, self._spoken = config, f"random-{seed}", spoken
        self._shapes = tensor_shapes(config)
        most = min(self._PRIME, max(int(np.prod(shape)) for shape in self._shapes.values()) | 1)
        numbers = np.random.default_rng(seed).standard_normal(most, np.float32)
        self._most, self._numbers = most, torch.from_numpy(np.concatenate([numbers, numbers]))

    def names(self) -> tuple[str, ...]:
        """See `Checkpoint`."""
        return tuple(self._shapes)

    def tensor(self, name: str) -> np.ndarray:
        """See `Checkpoint`: norms near 1, matrices whose products keep the size of what they multiply.

        Values are numbers of bfloat16, so that a model in float32 has the same weights.
        """
        shape = self._shapes[name]
        start, size = sum(map(ord, name)) % self._most, int(np.prod(shape))
        values = self._numbers[start : start + self._most]
        values = values.repeat(-(-size // self._most))[:size].view(shape) if size > self._most else values[:size]
        if len(shape) == 1:
            values = 0.1 * values + (1.0 if name.endswith("norm.weight") else 0.0)
        else:
            values = values.view(shape) * shape[-1] ** -0.5
        if self._spoken is not None and name == "model.embed_tokens.weight":
            values[self._spoken :] = 0.0
        return values.bfloat16().float().numpy()


class NumberTokenizer:
    """Enough of a tokenizer for an engine whose prompts are token ids: token i is the byte i % 128."""

    special_token_ids: frozenset[int] = frozenset()
    hidden_token_ids: frozenset[int] = frozenset()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id = None
    speaks_harmony = False
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


def make_lookups() -> Any:
    """Prompt lookup as the drafter `ngram` does it, without its compiled search: the package's needs Numba."""
    from paceline.drafters.base import BaseDrafter
    from paceline.sampling import TokenTree
    from paceline.speculation import DrafterTraits

    class Lookups(BaseDrafter):
        name, traits = "lookups", DrafterTraits(deterministic=True, prompt_lookup=(3, 1, False))

        def propose(self, contexts: Any) -> list[TokenTree]:
            return [TokenTree.chain(_repeated(list(each.token_ids))[: each.longest]) for each in contexts]

    def _repeated(text: list[int]) -> list[int]:
        for size in (3, 2, 1):
            for end in range(len(text) - 1, size - 1, -1):
                if text[end - size : end] == text[-size:]:
                    return text[end:]
        return []

    return Lookups()


def make_recorded(answers: dict[tuple[int, ...], list[int]], error_rate: float) -> Any:
    """A drafter that proposes the recorded answer of a prompt, each token wrong with probability `error_rate`.

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
        truth = answer[said : said + context.budget]
        return [(token + 1) % 128 if _is_wrong(said + i, token) else token for i, token in enumerate(truth)]

    def _is_wrong(place: int, token: int) -> bool:
        return (place * 2_654_435_761 ^ token * 2_246_822_519) % 1000 < 1000 * error_rate

    return Recorded()
