"""OpenVINO GenAI: its continuous batching pipeline, over a model that optimum-intel exports once."""

import argparse
import shutil
import subprocess
from pathlib import Path

import numpy as np

from peers.weights import converted, transformers_folder

_CACHE_GIB = 2


class OpenVINO:
    """Weights as `weight_format`: int8 (a scale per row), int4 (a scale per 64 at most), or fp32.

    Args:
        exact: multiply 8-bit weights with float32 activations and keep keys and values in float32, as Paceline does.
            By default OpenVINO rounds activations, keys and values to 8 bits too, which is faster and says other words.

    Raises:
        ImportError: a package or optimum-cli is missing.
    """

    def __init__(self, args: argparse.Namespace, weight_format: str, exact: bool = False) -> None:
        import openvino_genai as genai
        from openvino import Tensor

        folder = converted(args.model, f"openvino-{weight_format}", lambda out: _export(args.model, weight_format, out))
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = _CACHE_GIB
        scheduling.max_num_seqs = max(args.sizes)
        scheduling.enable_prefix_caching = False
        self._genai, self._tensor = genai, Tensor
        options = {"INFERENCE_NUM_THREADS": args.threads}
        if exact:
            options |= {
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
                "KV_CACHE_PRECISION": "f32",
                "INFERENCE_PRECISION_HINT": "f32",
            }
        self._pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduling, "CPU", options)

    def run_many(self, prompts: list[list[int]], max_tokens: int) -> int:
        settings = self._genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        inputs = [self._tensor(np.array([prompt], np.int64)) for prompt in prompts]
        answers = self._pipeline.generate(inputs, [settings] * len(inputs))
        return sum(len(answer.m_generation_ids[0]) for answer in answers)

    def close(self) -> None:
        del self._pipeline


def _export(model: str, weight_format: str, folder: Path) -> None:
    tool = shutil.which("optimum-cli")
    if tool is None:
        raise ImportError("optimum-cli is not on PATH")
    task = ["--task", "text-generation-with-past", "--library", "transformers", "--weight-format", weight_format]
    if weight_format == "int4":
        task += ["--group-size", "64"]  # the default, 128, does not divide the widths of small models
    source = transformers_folder(model)
    subprocess.run(
        [tool, "export", "openvino", "--model", source, *task, folder], check=True, stdout=subprocess.DEVNULL
    )
