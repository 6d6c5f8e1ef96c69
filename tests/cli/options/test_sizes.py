"""`--kv-cache-memory-bytes`: sizes with vLLM's suffixes."""

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.options.sizes import bytes_of
from paceline.errors import InvalidParameter


def test_a_command_refuses_what_is_no_size():
    result = CliRunner().invoke(app, ["generate", "--kv-cache-memory-bytes", "4X", "hi"])
    assert isinstance(result.exception, InvalidParameter)
    assert "kv_cache_memory_bytes: '4X' is no number of bytes; write e.g. 4G (4 GiB)" in str(result.exception)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 << 30), ("4g", 4 * 10**9), ("1k", 1000), ("1K", 1024), ("512M", 512 << 20), ("2T", 2 << 40),
     ("25.6k", 25600), ("1.5G", 3 << 29), ("1000", 1000), (None, None)],
)  # fmt: skip
def test_sizes_are_read_as_vllm_reads_them(text, size):
    assert bytes_of("kv_cache_memory_bytes", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "0", "4GB", "1e9", "1.0001k5", "0.0001k", "nan"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(InvalidParameter, match="kv_cache_memory_bytes"):
        bytes_of("kv_cache_memory_bytes", text)
