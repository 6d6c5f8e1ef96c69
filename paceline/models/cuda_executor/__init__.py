"""The executor for GPUs: the torch executor's layers over paged keys and values, in static shapes and CUDA graphs.

Runs on CPU tensors as well, for tests; a "graph" is then the function itself. Triton is imported when a kernel is first
used.
"""

from paceline.extras import check_executor

check_executor("cuda")

from paceline.models.cuda_executor.model import CudaModel  # noqa: E402

__all__ = ["CudaModel"]
