"""Blocks of files as a GPU multiplies them: the numbers of numpy's reader, by the twin and by Triton's interpreter."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline.config import EngineConfig  # noqa: E402
from paceline.engine.setup.load import load_executor  # noqa: E402
from paceline.errors import InvalidParameter  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.block_layers import put_blocks, times  # noqa: E402
from paceline.models.cuda_executor.block_matrix import BlockMatrix  # noqa: E402
from paceline.models.files.checkpoint import StoredBlocks  # noqa: E402
from paceline.models.files.gguf_file import GGUFCheckpoint  # noqa: E402
from paceline.models.files.gguf_header import BLOCKS  # noqa: E402
from paceline.models.numba_executor.blocks.formats import FORMATS  # noqa: E402
from paceline.models.numba_executor.blocks.unpack import unpack  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.types import silent  # noqa: E402
from tests.fakes import RandomCheckpoint, small_config  # noqa: E402

from ..test_blocks import random_blocks  # noqa: E402
from ..tiny import as_gguf, gguf_name  # noqa: E402
from .batches import tokens_of  # noqa: E402

NAMES = [name for name in FORMATS if name in BLOCKS]


def matrix_of(name, rows=40, depth=512):
    raw = random_blocks(name, rows, depth)
    size = BLOCKS[name][2]
    values = unpack(raw, FORMATS[name], size).values(FORMATS[name])
    return BlockMatrix.of(StoredBlocks(name, raw, size), torch.device("cpu")), values


@pytest.mark.parametrize("name", NAMES)
def test_a_matrix_holds_what_the_file_says(name):
    matrix, values = matrix_of(name)
    assert matrix.shape == values.shape
    np.testing.assert_array_equal(matrix.dense().numpy(), values)
    np.testing.assert_array_equal(matrix.rows(torch.tensor([3, 3, 0])).numpy(), values[[3, 3, 0]])


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "IQ4_NL", "Q4_K", "Q6_K"])
def test_the_kernel_multiplies_as_its_twin(name):
    pytest.importorskip("triton")
    from paceline.models.cuda_executor.kernels.blocks import widened
    from paceline.models.cuda_executor.kernels.products import partials, product

    matrix, _ = matrix_of(name, 40, 256)
    make = torch.Generator().manual_seed(0)
    x, bias = torch.randn(18, 256, generator=make), torch.randn(40, generator=make)
    found, want = product(x, matrix, bias), times(matrix, x, bias)
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-5)
    for rows in (slice(0, 1), slice(16, 18)):
        assert torch.equal(product(x[rows], matrix, bias), found[rows])
    gates, raised = want.chunk(2, dim=-1)
    gated = torch.nn.functional.silu(gates) * raised
    torch.testing.assert_close(product(x, matrix, bias, gate="silu"), gated, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(partials(x, matrix).sum(0) + bias, want, atol=1e-4, rtol=1e-5)
    assert torch.equal(widened(matrix, torch.float32), matrix.dense())


def test_products_with_matrices_of_several_forms_follow_each_other():
    pytest.importorskip("triton")
    from paceline.models.cuda_executor.kernels.products import partials

    parts = [matrix_of(name, 40, 768)[0] for name in ("Q4_0", "Q6_K")]
    plain, x = torch.randn(24, 768), torch.randn(3, 768)
    found = partials(x, *parts, plain)
    assert found.shape == (2, 3, 104)
    want = torch.cat([x @ parts[0].dense().T, x @ parts[1].dense().T, x @ plain.T], dim=-1)
    torch.testing.assert_close(found.sum(0), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_joined_matrices_are_one_after_the_other(name):
    parts = [matrix_of(name, rows, 512)[0] for rows in (40, 8)]
    assert parts[0].form == parts[1].form
    assert torch.equal(BlockMatrix.joined(parts).dense(), torch.cat([part.dense() for part in parts]))


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_has_whole_groups_of_a_matrix(name):
    matrix, values = matrix_of(name)
    assert matrix.part(()) is matrix
    for cut in ((slice(3, 20),), (slice(None), slice(64, 256))):
        np.testing.assert_array_equal(matrix.part(cut).dense().numpy(), values[cut])
    with pytest.raises(InvalidParameter, match="cannot be cut at 0 and 40"):
        matrix.part((slice(None), slice(0, 40)))


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_in_its_files_blocks_has_the_files_numbers(tmp_path, tied):
    plain = RandomCheckpoint(small_config(tie_word_embeddings=tied, attention_bias=False))
    matrices = [gguf_name(plain.config, name) for name in plain.names() if plain.tensor(name).ndim == 2]
    storage = {name: ("Q8_0", "Q4_0", "Q4_1")[i % 3] for i, name in enumerate(matrices)}
    checkpoint = GGUFCheckpoint(as_gguf(tmp_path / "blocks.gguf", plain, storage=storage))
    rows = build_rows([Part(range(2), 0, tokens_of(12))])
    ours = CudaModel(checkpoint, "cpu", "gguf", attention="by_position")
    theirs = CudaModel(checkpoint, "cpu", "float32", attention="by_position")
    want = theirs.forward(rows, theirs.new_cache(2)).logits
    np.testing.assert_allclose(ours.forward(rows, ours.new_cache(2)).logits, want, atol=1e-3, rtol=0)
    assert ours.num_bytes < theirs.num_bytes


@pytest.mark.parametrize("deterministic", [True, False])
def test_fused_layers_multiply_blocks_of_several_forms(tmp_path, deterministic):
    pytest.importorskip("triton")
    plain = RandomCheckpoint(small_config("qwen2", attention_bias=True))
    matrices = [gguf_name(plain.config, name) for name in plain.names() if plain.tensor(name).ndim == 2]
    storage = {name: "Q8_0" if name.endswith(("attn_v.weight", "ffn_down.weight")) else "Q4_0" for name in matrices}
    checkpoint = GGUFCheckpoint(as_gguf(tmp_path / "blocks.gguf", plain, storage=storage))
    rows = build_rows([Part(range(2), 0, tokens_of(5)), Part((2,), 0, [9])])
    ours = CudaModel(checkpoint, "cpu", "gguf", attention="triton", deterministic=deterministic)
    assert [len(layer.attention.project.weights) for layer in ours.stack.layers.values()] == [2] * 3
    theirs = CudaModel(checkpoint, "cpu", "float32", attention="by_position")
    found = ours.forward(rows, ours.new_cache(3)).logits
    np.testing.assert_allclose(found, theirs.forward(rows, theirs.new_cache(3)).logits, atol=1e-3, rtol=0)
    if deterministic:
        alone = ours.forward(build_rows([Part((2,), 0, [9])]), ours.new_cache(3)).logits
        np.testing.assert_array_equal(found[5], alone[0])


@pytest.mark.parametrize("rows", [17, 64])
def test_a_head_in_blocks_does_not_round_logits(rows):
    pytest.importorskip("triton")
    from paceline.models.cuda_executor.fused import FusedOutputHead

    matrix, _ = matrix_of("Q8_0", 40, 256)
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(0)).half()
    found = FusedOutputHead(matrix, lambda rows, dtype: rows <= 16)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, x.float() @ matrix.dense().half().float().T, atol=1e-5, rtol=1e-5)


def test_a_gpu_without_triton_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    plain = RandomCheckpoint(small_config())
    storage = {gguf_name(plain.config, "model.embed_tokens.weight"): "Q8_0"}
    checkpoint = GGUFCheckpoint(as_gguf(tmp_path / "blocks.gguf", plain, storage=storage))
    monkeypatch.setattr("paceline.models.cuda_executor.block_layers.find_spec", lambda name: None)
    with pytest.raises(InvalidParameter, match="needs triton"):
        put_blocks(torch.nn.Module(), checkpoint, torch.device("cuda"), torch.bfloat16, in_one_order=False)


def test_a_file_without_blocks_is_refused():
    with pytest.raises(InvalidParameter, match="dtype"):
        load_executor(RandomCheckpoint(small_config()), EngineConfig(executor="cuda", dtype="gguf"), "small", silent)
