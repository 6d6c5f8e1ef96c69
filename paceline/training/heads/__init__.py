"""Training of draft heads: stored texts with the target's hidden states, losses, figures, and a recipe per family.

Recipes and losses need torch, stored texts do not. Networks are in `models/torch_executor/heads/`, drafting with them
is in `drafters/heads/`, the training loop in `training/run/`.
"""
