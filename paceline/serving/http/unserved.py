"""What to use in place of an address that is not served: those of vLLM, llama.cpp, Ollama and OpenAI that people try.

Not for routes (`app.py`), and no list of them: docs/serving.md has that.
"""

from collections.abc import Iterator, Mapping

_CHAT, _COMPLETION, _MODELS = "use /v1/chat/completions", "use /v1/completions", "use /v1/models"
_STATE = "use /api/state, or /v1/models for the models' names"
_EMBEDDINGS = "there are no embeddings here, only generated text"
_RANKING = "texts are not ranked or classified here, only generated"
_SOUND, _IMAGES = "there is no speech here, only text", "there are no images here, only text"
_STORED = "nothing is stored: each request brings all of its conversation"
_ADAPTERS = "adapters are loaded with the model: paceline serve BASE+ADAPTER_FOLDER"
_FIXED = "the models of a server are those that it was started with: paceline serve MODEL --also NAME=MODEL"
_FILES = "nothing is uploaded here: run paceline batch on a file of OpenAI's requests"
_LASTING = "the models stay loaded: end the server, and start it again when it is needed"
_CACHE = "cached prompts cannot be emptied; requests with their own cache_salt share none"
_BASE = "this is where addresses begin, such as /v1/chat/completions"
_MORE = "docs/serving.md lists what is served"

_INSTEAD: Mapping[str, str] = {
    # Ollama
    "/api/chat": _CHAT, "/api/generate": _COMPLETION, "/api/tags": _MODELS, "/api/show": _STATE, "/api/ps": _STATE,
    "/api/version": "use /version", "/api/embed": _EMBEDDINGS, "/api/embeddings": _EMBEDDINGS, "/api/pull": _FIXED,
    "/api/push": _FIXED, "/api/create": _FIXED, "/api/copy": _FIXED, "/api/delete": _FIXED, "/api/blobs": _FIXED,
    # llama.cpp, SGLang, TGI
    "/completion": _COMPLETION, "/completions": _COMPLETION, "/chat/completions": _CHAT, "/generate": _COMPLETION,
    "/generate_stream": "use /v1/completions with stream: true", "/models/load": _FIXED, "/models/unload": _FIXED,
    "/models": _MODELS, "/props": _STATE, "/slots": _STATE, "/info": _STATE, "/get_model_info": _STATE,
    "/get_server_info": _STATE, "/v1/health": "use /health", "/embedding": _EMBEDDINGS, "/embeddings": _EMBEDDINGS,
    "/rerank": _RANKING, "/reranking": _RANKING, "/v1/reranking": _RANKING, "/lora-adapters": _ADAPTERS,
    "/apply-template": "use /tokenize with messages, then /detokenize", "/flush_cache": _CACHE,
    # vLLM
    "/ping": "use /health", "/load": "use /metrics, or /ready",
    "/server_info": _STATE, "/tokenizer_info": _STATE, "/sleep": _LASTING, "/wake_up": _LASTING,
    "/is_sleeping": _LASTING, "/reset_prefix_cache": _CACHE, "/reset_mm_cache": _CACHE, "/pooling": _EMBEDDINGS,
    "/classify": _RANKING, "/score": _RANKING, "/v1/score": _RANKING, "/v1/rerank": _RANKING, "/v2/rerank": _RANKING,
    "/v2/embed": _EMBEDDINGS, "/invocations": _CHAT, "/v1/load_lora_adapter": _ADAPTERS,
    "/v1/unload_lora_adapter": _ADAPTERS,
    # OpenAI, Anthropic, and addresses with too much or too little before them
    "/v1/v1": "leave out one /v1",
    "/v1/embeddings": _EMBEDDINGS, "/v1/audio": _SOUND, "/v1/realtime": _SOUND, "/v1/images": _IMAGES,
    "/v1/moderations": _RANKING, "/v1/files": _FILES, "/v1/batches": _FILES, "/v1/messages/batches": _FILES,
    "/v1/fine_tuning": "models are not trained here; paceline train makes draft heads", "/v1/assistants": _STORED,
    "/v1/threads": _STORED, "/v1/conversations": _STORED, "/v1/vector_stores": _STORED, "/v1/responses": _STORED,
    "/responses": "use /v1/responses", "/messages": "use /v1/messages", "/v1/complete": "use /v1/messages",
    "/v1/tokenize": "use /tokenize", "/v1/detokenize": "use /detokenize", "/v1/infill": "use /infill",
}  # fmt: skip
"""By address, which stands for those below it as well."""


def unserved(method: str, path: str, allowed: str | None = None) -> str:
    """The message of a request for an address that is not served, or not with this method.

    Args:
        allowed: methods that the address is served with; None where it is not served at all.
    """
    if allowed is not None:
        return f"{method} {path}: is served with {allowed} only"
    found = _BASE if path == "/v1" else next((_INSTEAD[each] for each in _upwards(path) if each in _INSTEAD), None)
    return f"{method} {path}: is not served; " + (f"{found}; {_MORE}" if found else _MORE)


def _upwards(path: str) -> Iterator[str]:
    """`path`, without a slash at its end, and what it lies below."""
    while path := path.rstrip("/"):
        yield path
        path = path.rpartition("/")[0]
