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


_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters with a case as DeepSeek-V2 lists them: many of Unicode's, but for Georgian and mathematical ones."""
_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
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
_DEEPSEEK2 = WordCut(r"\p{N}+", before=(r"[\r\n]", rf"\s?[{_CASED}]+", rf"\s?[{_SIGNS}]+", r"\s+$", _EAST_ASIAN))
_DEEPSEEK_CODER = WordCut(r"\p{N}", before=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN))
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
    "deepseek-llm": _DEEPSEEK2,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
}
"""Pre-tokenisers by the names that converters write. SmolLM2 has ``smollm``, Granite 3 ``refact``, Phi-4 and OLMo 2
``dbrx``, Phi-4-mini and gpt-oss ``gpt-4o``, Mistral from Nemo on ``tekken``, Seed-OSS ``seed-coder``,
DeepSeek-V2 ``deepseek-llm``."""


def word_cut(name: object) -> WordCut:
    """The pre-tokeniser called `name`. Raises UnsupportedModel for an unknown name, as a wrong one changes tokens."""
    found = WORD_CUTS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedModel(
            f"tokenizer.ggml.pre: {shown(name)} is not a known way to cut words; known are {', '.join(WORD_CUTS)}"
        )
    return found
