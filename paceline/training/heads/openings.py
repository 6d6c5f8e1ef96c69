"""First words of the prompts that a chat model writes to itself (Magpie, Xu et al. 2024).

Given only the opening of the user's turn, a chat model goes on with a request of the kind it was trained on. Half of
the prompts begin with nothing at all; first words make the others more varied. No text of anybody else is used.
"""

import numpy as np

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
"""First words, each as likely as the next."""

_BARE_SHARE = 0.4


def choose_openings(number: int, rng: np.random.Generator) -> list[str]:
    """`number` of them at random; empty ones among them."""
    chosen = rng.integers(0, len(STARTS), number)
    bare = rng.random(number) < _BARE_SHARE
    return ["" if empty else STARTS[i] for i, empty in zip(chosen, bare, strict=True)]
