"""Pre-tokenisers of byte-level vocabularies in GGUF files, by the name in ``tokenizer.ggml.pre``.

A GGUF file has only the name of a pre-tokeniser; the patterns are those in the ``tokenizer.json`` of the models that
introduced them. Not for vocabularies (`gguf_vocabulary.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from paceline.errors import UnsupportedModel
from paceline.models.fields import shown

_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _of_letters(digits: str, after_signs: str = r"[\r\n]*") -> str:
    """Pattern of words: letters with one leading sign, English contractions apart, numbers as `digits` matches them."""
    return rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+{after_signs}|{_REST}"


def _by_case(ending: str, digits: str) -> str:
    """As `_of_letters`, but an upper-case letter after a lower-case one begins a word."""
    sign = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{sign}{_UPPER}*{_LOWER}+{ending}|{sign}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"


@dataclass(frozen=True, slots=True)
class WordCut:
    """A way to split text into words before BPE.

    Attributes:
        pattern: regular expression of a word; empty for GPT-2's.
        before: regular expressions of words that are split off before those, one after another.
        digits_apart: whether every digit is split off first.
        composes: whether text is normalised to NFC first.
        whole_first: whether a word that is a token becomes that token without applying merges.
        begins: whether a BOS token is added where the file does not say.
    """

    pattern: str = ""
    before: tuple[str, ...] = ()
    digits_apart: bool = False
    composes: bool = False
    whole_first: bool = False
    begins: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokeniser as an object of `tokenizers`."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits_apart:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        for pattern in (*self.before, self.pattern):
            if pattern:
                steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern))
        return pre_tokenizers.Sequence(steps)


_GPT2 = WordCut()
_DIGITS_APART = WordCut(digits_apart=True)
_ONE_DIGIT = WordCut(_of_letters(r"\p{N}"))
_THREE_DIGITS = WordCut(_of_letters(r"\p{N}{1,3}"))
_LLAMA3 = WordCut(_of_letters(r"\p{N}{1,3}"), whole_first=True, begins=True)
_QWEN2 = WordCut(_of_letters(r"\p{N}"), composes=True)
_QWEN35 = WordCut(
    rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}",
    composes=True,
)
_TEKKEN = WordCut(_by_case("", r"\p{N}"), whole_first=True, begins=True)
_SEED = WordCut(_of_letters(r"\p{N}", after_signs=""))
_DEEPSEEK3 = WordCut(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_REST}",
    before=(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
)
_GPT4O = WordCut(_by_case(f"{_ENDING}?", r"\p{N}{1,3}"))

WORD_CUTS: Mapping[str, WordCut] = {
    **dict.fromkeys(("gpt2", "gpt-2", "phi-2", "olmo", "mpt", "exaone4", "a.x-4.0", "mellum"), _GPT2),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r"), _DIGITS_APART),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _THREE_DIGITS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), _QWEN2),
    "qwen35": _QWEN35,
    "stablelm2": _ONE_DIGIT,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O),
    "seed-coder": _SEED,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
}
"""Pre-tokenisers by the names that converters write. SmolLM2 has ``smollm``, Granite 3 ``refact``, Phi-4 and OLMo 2
``dbrx``, Phi-4-mini and gpt-oss ``gpt-4o``, Mistral from Nemo on ``tekken``, Seed-OSS ``seed-coder``."""


def word_cut(name: object) -> WordCut:
    """The pre-tokeniser called `name`. Raises UnsupportedModel for an unknown name, as a wrong one changes tokens."""
    found = WORD_CUTS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedModel(
            f"tokenizer.ggml.pre: {shown(name)} is not a known way to cut words; known are {', '.join(WORD_CUTS)}"
        )
    return found
