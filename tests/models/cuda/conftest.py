"""Triton's kernels are run by its interpreter here, which has to be said before a kernel is defined."""

import importlib.util
import os

os.environ["TRITON_INTERPRET"] = "1"

if importlib.util.find_spec("triton"):
    from .interpreter import keep_what_stays

    keep_what_stays()
