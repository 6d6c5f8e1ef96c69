"""`ThoughtTags`: what stands around the thoughts that a model writes before its answer, told by its chat template.

Not for reading an answer (`serving/protocol/thoughts.py`).
"""

from typing import NamedTuple


class ThoughtTags(NamedTuple):
    """Texts before and after thoughts.

    Attributes:
        tokens: those of which the tags consist, which are control tokens in some vocabularies.
    """

    opening: str
    closing: str
    tokens: tuple[str, ...]


def _of_tokens(opening: str, closing: str) -> ThoughtTags:
    return ThoughtTags(opening, closing, (opening, closing))


THINK = _of_tokens("<think>", "</think>")
"""Those of Qwen 3, DeepSeek R1 and most others; channels of gpt-oss are told with them."""
THOUGHT_TAGS = (
    THINK,
    _of_tokens("[THINK]", "[/THINK]"),
    ThoughtTags("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>")),
    _of_tokens("<seed:think>", "</seed:think>"),
    _of_tokens("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Of Mistral's models, Gemma 4, Seed-OSS and Command, too."""


def thought_tags(template: str) -> ThoughtTags | None:
    """The tags of a model with a chat `template`; None where it has no thoughts."""
    return next((tags for tags in THOUGHT_TAGS if tags.closing in template), None)
