"""Triton's kernels are run by its interpreter here, which has to be said before a kernel is defined."""

import os

os.environ["TRITON_INTERPRET"] = "1"
