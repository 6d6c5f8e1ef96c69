"""Time and memory of a start, each measured in a new process.

Parts: the import, loading (weights mapped, vocabulary read, kernels from the disk), the first token of a short prompt.
The first process converts and compiles what is not in the cache yet and is not counted. Memory is the peak resident
size, next to the weights as the kernels read them, the KV cache, and 150 MB for the program. Unused parts of the KV
cache are never resident; a small cache and a long prompt fill it.

    python benchmarks/start.py --model model.gguf --rounds 5
    python benchmarks/start.py --cache-bytes 67108864 --prompt-tokens 2600 --dtype bfloat16

The last line of standard output is one JSON object.
"""

import argparse
import json
import subprocess
import sys
import time

PROGRAM_BYTES = 150e6
_CHILD = "--in-this-process"


def main() -> None:
    args = parse()
    if args.in_this_process:
        print(json.dumps(once(args)))
        return
    from common import finish, median, show

    runs = [in_a_process() for _ in range(args.rounds + 1)][1:]
    middle = {name: median(run[name] for run in runs) for name in runs[0]}
    middle["share"] = middle["peak_bytes"] / (middle["weight_bytes"] + middle["cache_bytes"] + PROGRAM_BYTES)
    seconds = [f"{middle[name]:.2f}" for name in ("import_seconds", "load_seconds", "first_token_seconds")]
    sizes = [f"{middle[name] / 1e6:.0f}" for name in ("weight_bytes", "cache_bytes", "peak_bytes")]
    show(
        f"{args.model}, medians of {args.rounds} starts",
        ["import", "load", "first token", "weights MB", "keys MB", "peak MB", "of the sum with 150 MB"],
        [[*seconds, *sizes, f"{middle['share']:.2f}"]],
    )
    finish({"model": args.model, "dtype": args.dtype, "rounds": args.rounds, **middle})


def in_a_process() -> dict:
    """One start of a new Python."""
    command = [sys.executable, __file__, *sys.argv[1:], _CHILD]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def once(args: argparse.Namespace) -> dict:
    """A start in this process."""
    before = time.perf_counter()
    from paceline import LLM, SamplingParams

    imported = time.perf_counter()
    settings = {"dtype": args.dtype, "num_threads": args.threads, "profile": "none"}
    llm = LLM(args.model, speculative=None, kv_cache_memory_bytes=args.cache_bytes, **settings)
    loaded = time.perf_counter()
    prompt = llm.tokenizer.encode("The capital of France is, as everybody knows, ") * args.prompt_tokens
    stream = llm.stream(prompt[: args.prompt_tokens], SamplingParams(temperature=0, max_tokens=args.tokens))
    next(stream)
    first = time.perf_counter()
    for _ in stream:
        pass
    return {
        "import_seconds": imported - before, "load_seconds": loaded - imported, "first_token_seconds": first - loaded,
        **memory(llm, args.cache_bytes),
    }  # fmt: skip


def memory(llm, cache_bytes: int) -> dict:
    """Bytes of the weights as they are mapped, of the room for keys and values, and the most that was resident."""
    import resource

    weights = {id(array): array.nbytes for array in arrays(llm._loaded.model.shared_weights)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"weight_bytes": sum(weights.values()), "cache_bytes": cache_bytes, "peak_bytes": peak}


def arrays(value):
    """Every array in nested tuples; models without a part have None there."""
    if isinstance(value, tuple):
        for each in value:
            yield from arrays(each)
    elif value is not None:
        yield value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--cache-bytes", type=int, default=1 << 29)
    parser.add_argument(_CHILD, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
