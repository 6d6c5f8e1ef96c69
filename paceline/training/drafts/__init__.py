"""Training whole draft models: distilled from the target, on its text or on their own.

Draft heads are in `training/heads/`, the loop of both in `training/run/`.
"""
