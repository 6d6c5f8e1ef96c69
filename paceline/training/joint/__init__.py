"""Training of heads together with the target, which CHANGES THE TARGET: the result is another model.

Not for heads on a frozen target (`training/heads/`), which do not change its text.
"""
