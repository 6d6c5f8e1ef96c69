"""The vocabulary inside a GGUF file, built into a `tokenizers` pipeline.

Byte-level BPE where the file says ``gpt2``, SentencePiece's BPE where it says ``llama``, the same with listed merges
where it says ``gemma4``. Not for pre-tokenisation
(`gguf_words.py`), nor for encoding or decoding (`tokenizer.py`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.fields import Fields, shown
from paceline.models.text.gguf_words import word_cut

_LONGEST_PIECE = 512
"""Most characters of a SentencePiece token, since every way to split it is tried."""
SENTENCEPIECE = ("llama", "gemma4")
"""Kinds whose tokens are of letters, with bytes for others."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5


def backend_from_gguf(metadata: Mapping[str, Any]) -> Backend:
    """The `tokenizers` pipeline of a GGUF file's key-value pairs.

    Raises:
        UnsupportedModel: the kind of vocabulary or pre-tokeniser is unknown.
        CorruptWeights: parts of the vocabulary are missing or do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(metadata)
    if kind in SENTENCEPIECE:
        return _sentencepiece(metadata)
    raise UnsupportedModel(
        f"tokenizer.ggml.model: {kind!r} is not a vocabulary Paceline reads; "
        f"take a file with gpt2, {' or '.join(SENTENCEPIECE)} vocabulary"
    )


def _byte_level(metadata: Mapping[str, Any]) -> Backend:
    cut = word_cut(metadata.get("tokenizer.ggml.pre"))
    tokens, types = _tokens_and_types(metadata)
    model = _bpe(_vocabulary(tokens, types), _listed_merges(metadata), ignore_merges=cut.whole_first)
    backend = Backend(model)
    if cut.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cut.pre_tokenizer()
    _add_tokens(backend, tokens, types)
    if Fields(metadata).flag("tokenizer.ggml.add_bos_token", cut.begins):
        _prepend_bos(backend, metadata, tokens)
    return backend


def _sentencepiece(metadata: Mapping[str, Any]) -> Backend:
    tokens, types = _tokens_and_types(metadata)
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    vocabulary = _vocabulary(tokens, types)
    is_listed = metadata["tokenizer.ggml.model"] == "gemma4"
    merges = _listed_merges(metadata) if is_listed else _merges_from_scores(vocabulary, _scores(metadata, len(tokens)))
    backend = Backend(_bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if begins_with_space(metadata):
        steps.insert(0, normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence(steps)
    _add_tokens(backend, tokens, types)
    if Fields(metadata).flag("tokenizer.ggml.add_bos_token", True):
        _prepend_bos(backend, metadata, tokens)
    return backend


def begins_with_space(metadata: Mapping[str, Any]) -> bool:
    """Whether a SentencePiece vocabulary puts a space before a text."""
    return Fields(metadata).flag("tokenizer.ggml.add_space_prefix", metadata["tokenizer.ggml.model"] == "llama")


def _listed_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (m.partition(" ") for m in _need(metadata, "merges", str))]


def _scores(metadata: Mapping[str, Any], count: int) -> list[float]:
    scores = _need(metadata, "scores", float)
    if len(scores) != count:
        raise CorruptWeights(f"tokenizer.ggml.scores: {len(scores)} for {count} tokens; download the file again")
    return scores


def _merges_from_scores(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """BPE merges equivalent to SentencePiece's scores.

    SentencePiece merges the neighbours whose union has the best score. The list therefore has every split of every
    token into two tokens, the best score first.
    """

    def splits() -> Iterator[tuple[float, int, str, str]]:
        for token, number in vocabulary.items():
            if len(token) > _LONGEST_PIECE:
                raise CorruptWeights(
                    f"tokenizer.ggml.tokens: {shown(token)} has {len(token)} letters; download the file again"
                )
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in vocabulary and right in vocabulary:
                    yield -scores[number], number, left, right

    return [(left, right) for _, _, left, right in sorted(splits())]


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocabulary, merges, **options)
    except Exception as error:  # the library raises bare Exception
        raise CorruptWeights(
            f"tokenizer.ggml.merges: do not fit the tokens ({error}); download the file again"
        ) from None


def _need(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    values = Fields(metadata).list(f"tokenizer.ggml.{key}", kind)
    if not values:
        raise CorruptWeights(f"tokenizer.ggml.{key}: missing from the file; take a file that contains its vocabulary")
    return values


def _tokens_and_types(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    tokens, types = _need(metadata, "tokens", str), _need(metadata, "token_type", int)
    if len(types) != len(tokens):
        raise CorruptWeights(
            f"tokenizer.ggml.token_type: {len(types)} for {len(tokens)} tokens; download the file again"
        )
    return tokens, types


def _vocabulary(tokens: list[str], types: list[int]) -> dict[str, int]:
    """Token to id, without the unused ids that pad the embedding to a round size."""
    return {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}


def _add_tokens(backend: Backend, tokens: list[str], types: list[int]) -> None:
    """Add the tokens that are matched before BPE: control tokens, which decoding can skip, and user-defined ones."""
    listed = list(zip(tokens, types, strict=True))
    special = [AddedToken(t, special=True, normalized=False) for t, kind in listed if kind in (_CONTROL, _UNKNOWN)]
    defined = [AddedToken(t, special=False, normalized=False) for t, kind in listed if kind == _USER_DEFINED]
    backend.add_special_tokens(special)
    backend.add_tokens(defined)


def _prepend_bos(backend: Backend, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    number = Fields(metadata).optional_whole("tokenizer.ggml.bos_token_id")
    if number is None or number >= len(tokens):
        raise CorruptWeights(f"tokenizer.ggml.bos_token_id: {number!r} is no token; download the file again")
    bos = tokens[number]
    backend.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, number)]
    )
