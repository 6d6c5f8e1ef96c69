"""vLLM's CPU build, float32: its engine in a process of its own, which it binds to cores."""

import argparse
import os

from peers.weights import transformers_folder


class VLLM:
    """Compiled, a KV cache of 2 GiB, no prefix cache."""

    def __init__(self, args: argparse.Namespace) -> None:
        cores = sorted(os.sched_getaffinity(0))[: args.threads]
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(
            str(transformers_folder(args.model)), dtype="float32", max_num_seqs=max(args.sizes),
            max_model_len=args.context, enable_prefix_caching=False, skip_tokenizer_init=True,
        )  # fmt: skip

    def run_many(self, prompts: list[list[int]], max_tokens: int) -> int:
        params = self._params(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        answers = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    def close(self) -> None:
        del self._llm
