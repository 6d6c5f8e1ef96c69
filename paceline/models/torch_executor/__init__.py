"""The reference executor: every family as clear torch code, on any device.

Torch is imported here and in `cuda_executor/`, which builds on this, and nowhere else in `models/`.
"""

from paceline.errors import InvalidParameter

try:
    import torch  # noqa: F401
except ImportError:
    raise InvalidParameter(
        "executor", "torch is not installed", "run pip install 'paceline[torch]', or use executor='numba'"
    ) from None

from paceline.models.torch_executor.model import TorchModel

__all__ = ["TorchModel"]
