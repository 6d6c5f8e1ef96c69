"""The reference executor: every family as clear torch code, on any device.

Torch is imported here and in `cuda_executor/`, which builds on this, and nowhere else in `models/`.
"""

from paceline.extras import check_executor

check_executor("torch")

from paceline.models.torch_executor.model import TorchModel  # noqa: E402

__all__ = ["TorchModel"]
