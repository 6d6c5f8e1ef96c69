"""How many requests fit in memory: the largest batch, by bytes and by pages (Agrawal et al. 2023, SARATHI, 4.3)."""

from paceline.errors import InvalidParameter


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_number: int) -> int:
    """Keys and values of one token in every layer, m_kv."""
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number


def max_batch(memory_bytes: float, static_bytes: float, tokens_per_request: int, bytes_per_token: int) -> int:
    """B = floor((M_G - M_S) / (L m_kv)).

    Args:
        memory_bytes: M_G, memory of the device.
        static_bytes: M_S, what is taken whatever the batch: weights and work space.
        tokens_per_request: L, prompt and output.
        bytes_per_token: m_kv, see `kv_bytes_per_token`.
    """
    _check(tokens_per_request=tokens_per_request, bytes_per_token=bytes_per_token)
    return max(0, int((memory_bytes - static_bytes) // (tokens_per_request * bytes_per_token)))


def num_pages(memory_bytes: float, static_bytes: float, page_bytes: int) -> int:
    """Number of whole pages that fit into the memory besides `static_bytes`."""
    _check(page_bytes=page_bytes)
    return max(0, int((memory_bytes - static_bytes) // page_bytes))


def max_paged_batch(pages: int, page_size: int, tokens_per_request: int, shared_tokens: int = 0) -> int:
    """Requests of L tokens that fit in `pages` pages of `page_size` tokens: each takes ceil(L / page_size).

    With `shared_tokens` common leading tokens the full pages of these are held once. Never more than `max_batch` of the
    same memory when nothing is shared.
    """
    _check(page_size=page_size, tokens_per_request=tokens_per_request)
    shared = min(shared_tokens, tokens_per_request - 1) // page_size  # the last token is always a request's own
    own = -(-tokens_per_request // page_size) - shared
    return max(0, (pages - shared) // own)


def _check(**values: int) -> None:
    for field, value in values.items():
        if value < 1:
            raise InvalidParameter(field, f"{value} is less than 1", "give a whole number of at least 1")
