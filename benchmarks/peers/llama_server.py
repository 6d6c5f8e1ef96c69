"""llama.cpp's server, from a wheel and so without a compiler: plain, drafting by its own n-gram lookup, or by a head.

Run it in an environment of its own, which needs nothing of Paceline:

    python -m venv llama && llama/bin/pip install xllamacpp
    llama/bin/python benchmarks/peers/llama_server.py smollm2-135m.gguf --port 8101
    llama/bin/python benchmarks/peers/llama_server.py smollm2-135m.gguf --port 8102 --ngram 3 --draft 8
    llama/bin/python benchmarks/peers/llama_server.py smollm2-135m.gguf --port 8103 --head eagle3.gguf --draft 3
"""

import argparse
import time

import xllamacpp


def main() -> None:
    args = parse()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.port, params.n_parallel, params.n_ctx = args.port, args.parallel, args.parallel * args.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.cache_ram_mib = 0
    if args.ngram:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = args.ngram, args.draft
    if args.head:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max, draft.n_min, draft.p_min = args.head, args.draft, 0, 0.0
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = args.threads
    server = xllamacpp.Server(params)
    print(f"llama.cpp of xllamacpp {xllamacpp.__version__} at {server.listening_address}", flush=True)
    while True:
        time.sleep(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--port", type=int, default=8101)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=8, help="requests at once")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each request")
    parser.add_argument("--ngram", type=int, help="draft by lookup of so many last tokens; left out, decode plainly")
    parser.add_argument("--head", help="draft with this EAGLE-3 head (paceline heads convert --to llama.cpp)")
    parser.add_argument("--draft", type=int, default=8, help="most tokens of a draft")
    return parser.parse_args()


if __name__ == "__main__":
    main()
