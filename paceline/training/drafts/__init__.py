"""Training of whole draft models by distillation from the target, on its text or on their own.

Draft heads are in `training/heads/`, the training loop of both is in `training/run/`.
"""
