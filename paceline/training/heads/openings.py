"""Prompts that a chat model writes itself (Magpie, Xu et al. 2024).

Given only the beginning of the user's turn, a chat model continues with a request of the kind it was trained on. 40 %
of the prompts begin with an empty turn; first words make the others more varied. No text from elsewhere is used.
"""

from collections.abc import Callable, Sequence

import numpy as np

from paceline.models.text.tokenizer import Tokenizer
from paceline.types import SamplingParams

Generate = Callable[[Sequence[Sequence[int]], Sequence[SamplingParams]], Sequence[Sequence[int]]]
"""Maps prompts and their sampling parameters to the token ids of answers, including the token that ended each."""

STARTS = (
    "Write a", "Write an", "Write a short story about", "Write a poem", "Write a letter", "Write an email",
    "Write a Python", "Write a function that", "Write a review", "Compose", "Draft", "Create a", "Invent", "Explain",
    "Explain why", "Describe", "Tell me about", "Tell me", "What is", "What are the", "What would",
    "What happens when", "Why", "How", "How do I", "How does", "How can", "When", "Where", "Who", "Which", "Is it",
    "Does", "Can you", "Could you", "Should I", "Would you rather", "Compare", "Contrast", "Discuss", "Argue",
    "Debate", "Analyze", "Evaluate", "Criticise", "Interpret", "Give me", "Give an example", "List", "Name three",
    "Suggest", "Recommend", "Plan", "Design", "Develop", "Implement", "Debug", "Refactor", "Summarize",
    "Summarize the following", "Rewrite", "Edit", "Translate", "Extract", "Classify", "Identify", "Find", "Solve",
    "Calculate", "Prove", "If", "Suppose", "Imagine", "Imagine you are", "Pretend to be", "Act as", "You are a",
    "As a", "Play the role", "I am", "I have", "I want to", "I need", "My", "We", "The", "In the", "A", "There is",
    "Given", "Consider", "Read", "Help me", "Please", "Hello",
)  # fmt: skip
"""First words, chosen with equal probability."""

_BARE_SHARE = 0.4
_LONGEST, _LEAST, _KNOWN_BY = 160, 3, 8
"""Tokens of a prompt: most; the largest number that is too few; first ones that tell a duplicate."""
_MARK = "\x00here\x00"


def choose_openings(number: int, rng: np.random.Generator) -> list[str]:
    """`number` random first words, a share `_BARE_SHARE` of them empty."""
    chosen = rng.integers(0, len(STARTS), number)
    bare = rng.random(number) < _BARE_SHARE
    return ["" if empty else STARTS[i] for i, empty in zip(chosen, bare, strict=True)]


def own_prompts(tokenizer: Tokenizer, generate: Generate, number: int, rng: np.random.Generator) -> list[list[int]]:
    """At most `number` prompts that the model wrote, in its chat template, without unfinished ones and duplicates.

    For a model without a template, the prompts are the first words alone.
    """
    encode, openings = tokenizer.encode, choose_openings(number, rng)
    if not tokenizer.has_chat_template:
        return [encode(words or "The") for words in openings]
    head, tail = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}]).split(_MARK)
    begun = [encode(head + words, False) for words in openings]
    written = generate(begun, [writing_params(1.0, _LONGEST, rng) for _ in begun])
    texts: dict[tuple[int, ...], str] = {}
    for words, ids in zip(openings, written, strict=True):
        if len(ids) > _LEAST and ids[-1] in tokenizer.special_token_ids:
            text = words + tokenizer.decode(ids, continuation=True)
            texts.setdefault(tuple(ids[:_KNOWN_BY]), text.strip())
    return [encode(head + text + tail, False) for text in texts.values() if text]


def writing_params(temperature: float, max_tokens: int, rng: np.random.Generator) -> SamplingParams:
    """Sampling parameters of a text: greedy at temperature 0, else top_p 0.95; with a random seed."""
    top_p = 0.95 if temperature else 1.0
    return SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=int(rng.integers(1 << 31)))
