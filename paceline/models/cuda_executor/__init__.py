"""The executor for GPUs: the torch executor's layers over paged keys and values, in static shapes and CUDA graphs.

Runs on CPU tensors as well, where graphs are run anew and tests can look at everything but the speed. Triton is
imported where a kernel is first asked for, and not before.
"""

from paceline.models.cuda_executor.model import CudaModel

__all__ = ["CudaModel"]
