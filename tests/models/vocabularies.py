"""Tiny vocabularies trained on a few lines, as GGUF key-value pairs and as transformers' own tokenizers."""

import json
from functools import cache
from itertools import pairwise

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTROL, USER_DEFINED, UNUSED, NORMAL, UNKNOWN, BYTE = 3, 4, 5, 1, 2, 6
LINES = [
    "the cat sat on the mat and the hat", "don't you're they've I'll he'd", "naïve café über straße 東京 日本 🎉",
    "def f(x):\n    return x + 12345\n\n", "HELLO Hello hello 2024 2025 100 1000", "  two  spaces   three\t\ttabs\r\n",
]  # fmt: skip
SAMPLES = [
    "", " ", "the cat", " the  cat   sat", "don't DON'T you'RE", "x=1+22+333+4444+55555", "a\n\nb\r\n\r\n  c\t",
    "naïve nai\u0308ve",     "東京🎉日本 👩‍👩‍👧", "<|im_start|>user\nhi<|im_end|>\n", "½ ² ٣ Ⅷ 12½",
    "\u00a0nbsp\u2003em\u200bzw", "tail   ",
    "<tool>call</tool>", "\x00\x7f control", "HELLO, World!... (ok)?",
]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def byte_level() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Tokens and merges of a byte-level BPE."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(LINES * 3, trainer)
    vocabulary = trained.get_vocab()
    merges = json.loads(trained.to_str())["model"]["merges"]
    return tuple(sorted(vocabulary, key=vocabulary.__getitem__)), tuple(map(tuple, merges))


def byte_level_gguf(pre: str = "smollm", padding: int = 0, extra: dict | None = None) -> dict:
    """Key-value pairs of the byte-level vocabulary with two control tokens, a user-defined one, and unused padding."""
    tokens, merges = byte_level()
    padded = [f"[PAD{i}]" for i in range(padding)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "<|im_start|>", "<|im_end|>", "<tool>", *padded],
        "tokenizer.ggml.token_type": [
            *[NORMAL] * len(tokens), CONTROL, CONTROL, USER_DEFINED, *[UNUSED] * padding
        ],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
        "tokenizer.chat_template": TEMPLATE,
    } | (extra or {})  # fmt: skip


def transformers_twin(pre: str):
    """transformers' own class with the same vocabulary: an independent account of how words are cut."""
    from transformers import AddedToken, GPT2Tokenizer, Qwen2Tokenizer

    tokens, merges = byte_level()
    cls = {"gpt2": GPT2Tokenizer, "qwen2": Qwen2Tokenizer}[pre]
    twin = cls(
        vocab={token: i for i, token in enumerate((*tokens, "<|im_start|>", "<|im_end|>"))},
        merges=list(merges), bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|im_end|>",
        pad_token="<|im_end|>",
    )  # fmt: skip
    twin.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return twin


@cache
def _gemma4_trained() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(LINES * 3, trainers.BpeTrainer(vocab_size=260, show_progress=False))
    vocabulary = trained.get_vocab()
    merges = json.loads(trained.to_str())["model"]["merges"]
    named = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{b:02X}>" for b in range(256))]
    return (*named, *sorted(vocabulary, key=vocabulary.__getitem__)), tuple(map(tuple, merges))


def gemma4_gguf() -> dict:
    """Key-value pairs of Gemma 4's vocabulary: letters, merges in a list, bytes for other letters."""
    tokens, merges = _gemma4_trained()
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [*[CONTROL] * 3, UNKNOWN, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 261)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
    }


def gemma_twin():
    """transformers' own class with that vocabulary."""
    from transformers import GemmaTokenizer

    tokens, merges = _gemma4_trained()
    return GemmaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=list(merges))


PIECES = {
    "▁": -1.0, "t": -9.0, "h": -9.1, "e": -9.2, "c": -9.3, "a": -9.4, "s": -9.5, "th": -3.0, "he": -2.5, "the": -4.0,
    "▁t": -3.5, "▁the": -2.0, "at": -2.2, "cat": -5.0, "▁c": -3.2, "▁cat": -6.0, "sat": -4.4, "sa": -2.1, "ca": -2.05,
}  # fmt: skip


def sentencepiece_gguf(extra: dict | None = None) -> dict:
    """Key-value pairs of a SentencePiece vocabulary: unknown, bos, eos, 256 bytes, pieces with scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*[0.0] * 259, *PIECES.values()],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | (extra or {})


def sentencepiece_by_hand(text: str) -> list[str]:
    """SentencePiece's rule spelled out: join the neighbours whose union scores best, leftmost first, until none do."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        scored = [(PIECES.get(a + b, -1e9), -i) for i, (a, b) in enumerate(pairwise(parts))]
        if not scored or max(scored)[0] == -1e9:
            return parts
        at = -max(scored)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def sentencepiece_backend() -> Tokenizer:
    """A `tokenizers` pipeline as Llama 2 models ship it in tokenizer.json."""
    tokens = sentencepiece_gguf()["tokenizer.ggml.tokens"]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [("t", "h")], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend
