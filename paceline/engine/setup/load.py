"""Load a model on the executor that runs it. Not for the engine around it (`build.py`)."""

from dataclasses import replace

from paceline.config import EngineConfig
from paceline.errors import InvalidParameter, UnsupportedModel, warn_safely
from paceline.extras import check_executor
from paceline.models.base import CausalLM
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.loaded import LoadedModel
from paceline.models.processors import check_threads
from paceline.models.resolve import resolve_model
from paceline.models.text.given_template import read_template, with_given_template
from paceline.types import NamedProgress, silent


def load(name: str, config: EngineConfig, progress: NamedProgress = silent) -> LoadedModel:
    """Find, fetch, convert and warm up the model called `name`.

    Raises:
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel, InvalidParameter: see `resolve_model` and the
            executors.
    """
    check_threads(config.num_threads)
    check_executor(config.chosen_executor)
    template = None if config.chat_template is None else read_template(config.chat_template)  # before a download
    source = resolve_model(name, progress=lambda done, total: progress(f"fetching {name}", done, total))
    if template is not None:
        source = replace(source, tokenizer=with_given_template(source.tokenizer, template))
    return LoadedModel(source, load_executor(source.checkpoint, config, name, progress))


def load_executor(checkpoint: Checkpoint, config: EngineConfig, name: str, progress: NamedProgress) -> CausalLM:
    """The model on the executor that `config` names; ``auto`` takes cuda on a CUDA device, else numba, else torch.

    Raises:
        UnsupportedModel: the named executor does not support this model family, or no parallel run does.
        InvalidParameter: torch is not installed or does not support the dtype or device, or a parallel degree does not
            fit the model.
        WorkerDied: a process of a parallel run could not start.
    """
    executor = config.chosen_executor
    if executor in ("auto", "numba"):
        try:
            return _numba_model(checkpoint, config, name, progress)
        except UnsupportedModel:
            if executor == "numba":
                raise
        executor = "torch"
    if checkpoint.config.recurrence and config.is_parallel:
        problem = f"{name} has recurrent layers, which run in one process only"
        raise UnsupportedModel(f"executor: {problem}; leave out parallel sizes, or take another model")
    if config.dtype in ("int8", "w8a8") or (config.dtype == "gguf" and executor != "cuda"):
        problem = f"{config.dtype!r} is not known to the {executor} executor"
        blocks = ", or gguf for a file's own blocks" if executor == "cuda" else ""
        raise InvalidParameter("dtype", problem, f"use bfloat16, float16 or float32{blocks}")
    if config.kv_cache_dtype != "auto":
        problem = f"{config.kv_cache_dtype!r} cannot be chosen with the {executor} executor"
        raise InvalidParameter("kv_cache_dtype", problem, "leave it at auto: keys have the weights' type")
    if executor == "cuda" and config.device == "cpu":
        warn_safely("the cuda executor runs on the CPU, slowly, for tests; name a GPU by device (--device cuda:0)",
                    UserWarning)  # fmt: skip
    if executor != "cuda" and config.deterministic:
        problem = "the torch executor sums by the number of rows"
        raise InvalidParameter("deterministic", problem, "use executor='cuda', or 'numba', which always is")
    if config.is_parallel:
        return _parallel_model(checkpoint, config, name, progress)
    if executor == "cuda":
        from paceline.models.cuda_executor import CudaModel

        return CudaModel(checkpoint, config.device, config.dtype, deterministic=config.deterministic)
    from paceline.models.torch_executor import TorchModel

    return TorchModel(checkpoint, config.device, config.dtype)


def _parallel_model(checkpoint: Checkpoint, config: EngineConfig, name: str, progress: NamedProgress) -> CausalLM:
    what = f"starting {config.tensor_parallel_size} x {config.pipeline_parallel_size} processes for {name}"
    progress(what, 0, 1)
    degrees = config.tensor_parallel_size, config.pipeline_parallel_size
    how = {
        "layer_partition": config.pipeline_layer_partition, "head_share": config.pipeline_head_share,
        "device": config.device, "dtype": config.dtype, "num_threads": config.num_threads,
    }  # fmt: skip
    if config.chosen_executor == "cuda":
        from paceline.models.cuda_executor import parallel as on_gpus

        model = on_gpus.launch_model(checkpoint, *degrees, deterministic=config.deterministic, **how)
    else:
        from paceline.models.torch_executor import parallel

        model = parallel.launch_model(checkpoint, *degrees, **how)
    progress(what, 1, 1)
    return model


def _numba_model(checkpoint: Checkpoint, config: EngineConfig, name: str, progress: NamedProgress) -> CausalLM:
    from paceline.models.numba_executor.executor import NumbaModel

    form = "" if config.dtype == "auto" else f" to {config.dtype}"
    model = NumbaModel(
        checkpoint,
        config.dtype,
        config.num_threads,
        lambda done, total: progress(f"converting {name}{form} (once)", done, total),
        config.kv_cache_dtype,
    )
    progress("preparing kernels (compiled once, about 10 s)", 0, 1)
    model.warm_up()
    progress("preparing kernels (compiled once, about 10 s)", 1, 1)
    return model
