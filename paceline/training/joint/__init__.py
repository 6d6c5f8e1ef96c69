"""Training heads together with the target, which CHANGES THE TARGET: the result is another model.

Not for heads beside a frozen target (`training/heads/`), which leave its text as it is.
"""
