"""What happens beside the first download of a built-in model. Not for the compiling process (`ahead.py`)."""

from paceline.config import EngineConfig
from paceline.models.fetch.download import BUILTIN_MODELS, check_place, weights_path


def start_compiler(model: str, config: EngineConfig) -> None:
    """Compile the kernels of a built-in model while it is downloaded for the first time.

    Raises:
        DownloadFailed: the cache cannot be written, or has no room for the model.
    """
    builtin = BUILTIN_MODELS.get(model)
    if builtin is None or weights_path(builtin).exists() or config.chosen_executor in ("torch", "cuda"):
        return
    check_place(builtin)  # rather now than after half a minute of compiling
    from paceline.engine.setup.ahead import compile_beside
    from paceline.models.numba_executor.ahead import compile_ahead

    dtype = builtin.dtype if config.dtype == "auto" else config.dtype
    compile_beside(dtype, config.kv_cache_dtype)
    compile_ahead(dtype, config.kv_cache_dtype, builtin.blocks)
