"""Stand-ins for the seams: random weights, a byte tokenizer, drafters that know too much or too little."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from paceline.drafters.base import BaseDrafter
from paceline.errors import DrafterWarning, PolicyWarning
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.latent import LatentAttention
from paceline.models.architecture.layer_sizes import LayerSizes
from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.text.call_formats import HERMES
from paceline.sampling import TokenTree
from paceline.speculation import DrafterTraits, RequestOutcome


def small_config(model_type: str = "llama", **changes) -> ModelConfig:
    """A transformer that runs in milliseconds and is wide enough for every kernel."""
    values = {
        "model_type": model_type, "vocab_size": 131, "hidden_size": 96, "intermediate_size": 160,
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "norm_eps": 1e-5,
        "max_position_embeddings": 512, "tie_word_embeddings": True, "attention_bias": model_type == "qwen2",
        "qk_norm": model_type in ("qwen3", "qwen3_moe"),
    }  # fmt: skip
    return ModelConfig(**(values | changes))


def mixture_config(model_type: str = "qwen2_moe", **changes) -> ModelConfig:
    """A small mixture of experts, as `small_config`; that of GLM-4.5 has one dense layer before two others."""
    if model_type == "glm4_moe":
        experts = Experts(
            8, 2, True, 64, scoring_func="sigmoid", e_score_correction_bias=True, n_group=4, topk_group=2,
            routed_scaling_factor=1.75, shared_expert_gate=False, first_k_dense_replace=1, dense_intermediate_size=160,
        )  # fmt: skip
        return small_config(model_type, **({"experts": experts, "intermediate_size": 96} | changes))
    shared = 64 if model_type == "qwen2_moe" else 0
    experts = Experts(num_experts=8, num_experts_per_tok=2, norm_topk_prob=not shared, shared_intermediate_size=shared)
    bias = model_type == "qwen2_moe"
    return small_config(model_type, **({"experts": experts, "intermediate_size": 96, "attention_bias": bias} | changes))


def latent_config(**changes) -> ModelConfig:
    """A small model with latent attention and the experts of `mixture_config`, as DeepSeek-V3."""
    latent = LatentAttention(64, 32, qk_rope_head_dim=16, qk_nope_head_dim=48, v_head_dim=32)
    sizes = {"latent": latent, "head_dim": 64, "rotary_dim": 16, "num_key_value_heads": 6, "attention_scale": 0.2}
    return replace(mixture_config("glm4_moe"), **({"model_type": "deepseek_v3"} | sizes | changes))


def varied_config() -> ModelConfig:
    """Layers with the parts of Gemma 4's, whose last two read the keys of the two before."""
    local, full = LayerSizes(32, 2, 96, 0), LayerSizes(64, 1, 96, 1, has_values=False)
    return small_config(
        "gemma4_text", num_hidden_layers=6, hidden_size=64, intermediate_size=192, num_attention_heads=4, head_dim=64,
        layer_sizes=(local, full, replace(local, cache_layer=2), replace(full, cache_layer=3),
                     LayerSizes(32, 2, 192, 2, False, False), LayerSizes(64, 1, 192, 3, False, False)),
        windows=(20, 0, 20, 0, 20, 0), rope_local_theta=100.0, rope_inv_freq_scale=(1.0,) * 8 + (0.0,) * 24,
        hidden_size_per_layer_input=32, layer_scalars=True, value_norm=True, qk_norm=True, post_norms=True,
        attention_scale=0.15, mlp="gated_gelu_tanh",
    )  # fmt: skip


def varied_mixture_config() -> ModelConfig:
    """`varied_config` with experts beside the feed-forward, and without inputs of a layer's own."""
    dense = varied_config()
    return replace(
        dense, num_hidden_layers=4, layer_sizes=dense.layer_sizes[:4], windows=dense.windows[:4],
        hidden_size_per_layer_input=0, intermediate_size=96,
        experts=Experts(6, 3, True, 64, shared_expert_gate=False, beside_dense=True),
    )  # fmt: skip


_AROUND_ONE = ("norm.weight", "layer_scalar.weight")


class RandomCheckpoint:
    """Random weights of `config`, the same for the same seed."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        self.fingerprint = f"random-{config.model_type}-{abs(hash((config, seed))):x}"
        rng = np.random.default_rng(seed)
        self._tensors = {
            name: (1.0 * name.endswith(_AROUND_ONE) + 0.2 * rng.standard_normal(shape)).astype(np.float32)
            for name, shape in tensor_shapes(config).items()
        }

    storage = "F32"

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def tensor(self, name: str) -> np.ndarray:
        return self._tensors[name]


class ByteTokenizer:
    """Token i is the byte i; 128 and above are special, 130 ends a text. Enough of `Tokenizer` for an engine."""

    special_token_ids = hidden_token_ids = frozenset((128, 129, 130))
    eos_token_ids = (130,)
    bos_token_id = None
    vocab_size = 131
    longest_token = 8
    has_chat_template = speaks_harmony = False
    thought_tags, call_format = None, HERMES

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("ascii"))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 128 else b""

    def same_vocabulary(self, other: "ByteTokenizer") -> bool:
        return type(other) is type(self)


class PieceTokenizer:
    """Token i is pieces[i]; text is cut greedily into the longest pieces, letters in none of them are lost.

    `<...>` is special, `</s>` ends a text.
    """

    bos_token_id = None
    speaks_harmony = False
    longest_token = 8

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self.vocab_size = len(pieces)
        self.special_token_ids = self.hidden_token_ids = frozenset(
            i for i, piece in enumerate(pieces) if piece.startswith("<")
        )
        self.eos_token_ids = tuple(i for i, piece in enumerate(pieces) if piece == "</s>")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = []
        while text:
            piece = max((p for p in self._pieces if text.startswith(p)), key=len, default="")
            ids += [self._pieces.index(piece)] if piece else []
            text = text[len(piece) or 1 :]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id].encode()


def run_to_end(engine) -> dict:
    """What every request got, by its id."""
    finished = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output.finished
    return finished


def tell(drafter, request_id: str, token_ids, finished: bool = False, **fields) -> None:
    """What an engine tells a drafter after a step: the whole text of a request, and other fields of the outcome."""
    drafter.observe(RequestOutcome(request_id, token_ids, finished=finished, **fields))


class CountingList(list):
    """A list that counts how many of its items were read one by one or in slices, and is never read as a whole."""

    num_read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.num_read += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self):
        raise AssertionError("the whole text was read")


class Quiet(BaseDrafter):
    """A drafter that needs to know nothing of what became of its drafts; it proposes trees."""

    name = "quiet"
    traits = DrafterTraits(branches=True)


class Oracle(Quiet):
    """Knows the answers: proposes trees whose true continuation hides on a branch that is not the first.

    Args:
        answers: prompt to the whole true sequence.
    """

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._answers = answers

    def propose(self, contexts):
        return [self._tree(context) for context in contexts]

    def _tree(self, context):
        truth = self._answers[tuple(context.token_ids[: context.num_prompt_tokens])][len(context.token_ids) :]
        wrong = [(token + 1) % 128 for token in truth]
        paths = [wrong[:2], [*truth[:1], *wrong[1:2]], truth[:3]]
        return TokenTree.trie([path for path in paths if path]).prune(context.budget)


class Babbler(Quiet):
    """Proposes the same nonsense to everybody."""

    def propose(self, contexts):
        return [TokenTree.chain([7, 8, 9][: context.budget]) for context in contexts]


@contextmanager
def no_drafter_fails() -> Iterator[None]:
    """No drafter and no policy is switched off meanwhile.

    Filters that turn warnings into errors would not tell: an engine logs those (`warn_safely`).
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert not [one.message for one in caught if issubclass(one.category, DrafterWarning | PolicyWarning)]
