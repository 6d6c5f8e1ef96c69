"""Deterministic products: Triton's interpreter against PyTorch, and rows that do not depend on their number."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from paceline.errors import InvalidParameter  # noqa: E402
from paceline.models.cuda_executor import CudaModel  # noqa: E402
from paceline.models.cuda_executor.invariant import RowInvariant, linear_by_rows, mean_by_rows  # noqa: E402
from paceline.models.rows import Part, build_rows  # noqa: E402
from paceline.models.torch_executor.layers import _gelu_tanh  # noqa: E402
from tests.fakes import RandomCheckpoint, small_config  # noqa: E402

from .batches import tokens_of  # noqa: E402


@pytest.fixture
def kernels():
    pytest.importorskip("triton")
    from paceline.models.cuda_executor.kernels import products

    return products


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 32), (5, 200, 70), (40, 129, 33)])
def test_the_kernel_is_a_linear_layer(kernels, rows, inputs, outputs):
    x, weight, bias = numbers(rows, inputs), numbers(outputs, inputs, seed=1), numbers(outputs, seed=2)
    torch.testing.assert_close(
        kernels.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(kernels.linear(x, weight), linear_by_rows(x, weight), atol=1e-4, rtol=0)


def test_half_precision_sums_in_float32(kernels):
    x, weight = numbers(3, 300, dtype=torch.float16), numbers(20, 300, seed=1, dtype=torch.float16)
    found = kernels.linear(x, weight)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, (x.float() @ weight.float().T).half(), atol=2e-2, rtol=1e-3)


def test_a_rows_product_and_mean_do_not_depend_on_the_number_of_rows(kernels):
    x, weight = numbers(37, 150), numbers(40, 150, seed=1)
    product, mean = kernels.linear(x, weight), kernels.row_mean(x)
    torch.testing.assert_close(mean, x.mean(-1, keepdim=True))
    # Rows keep their places in tiles of 16: the interpreter multiplies by numpy, whose sums depend on them on some.
    for rows in (slice(0, 1), slice(16, 17), slice(16, 21), slice(32, 37)):
        assert torch.equal(kernels.linear(x[rows], weight), product[rows])
        assert torch.equal(kernels.row_mean(x[rows]), mean[rows])


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_takes_a_gated_activation_along(kernels, gate, has_bias):
    x, weight = numbers(5, 200), numbers(66, 200, seed=3) / 14
    bias = numbers(66, seed=4) if has_bias else None
    gates, raised = torch.nn.functional.linear(x, weight, bias).chunk(2, dim=-1)
    act = torch.nn.functional.silu if gate == "silu" else _gelu_tanh
    torch.testing.assert_close(kernels.product(x, weight, bias, gate=gate), act(gates) * raised, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("inputs", "outputs", "parts"), [(1600, 70, 5), (200, 70, 2), (40, 33, 1)])
def test_parts_of_a_sum_add_up(kernels, inputs, outputs, parts):
    x, weight = numbers(19, inputs), numbers(outputs, inputs, seed=1)
    found = kernels.partials(x, weight)
    assert found.shape == (parts, 19, outputs)
    torch.testing.assert_close(found.sum(0), x @ weight.T, atol=1e-3, rtol=0)
    assert torch.equal(kernels.partials(x[16:], weight), found[:, 16:])


def test_logits_keep_their_sums_in_float32(kernels):
    x, weight = numbers(3, 64, dtype=torch.float16), numbers(40, 64, seed=1, dtype=torch.float16)
    found = torch.empty(3, 40)
    assert kernels.product(x, weight, out=found) is found
    torch.testing.assert_close(found, x.float() @ weight.float().T, atol=1e-5, rtol=0)
    assert kernels.product(x[:0], weight).shape == (0, 40)


def test_nothing_but_the_weights_shape_cuts_a_product(kernels):
    assert kernels.tile_of(151_936, 1536, 2, False).outputs == 64
    assert [kernels.tile_in_parts(*shape, 2).parts for shape in ((2048, 1536), (1536, 1536), (1536, 8960))] == [4, 4, 5]
    assert kernels.tile_in_parts(151_936, 1536, 2).parts == 1


def test_layers_take_the_modes_products():
    taken = []
    layer, x = torch.nn.Linear(8, 4), numbers(2, 8)

    def linear(*given):
        taken.append("linear")
        return linear_by_rows(*given)

    def mean(given):
        taken.append("mean")
        return mean_by_rows(given)

    with torch.no_grad(), RowInvariant(linear, mean):
        product, average = layer(x), x.mean(-1, keepdim=True)
    assert taken == ["linear", "mean"]
    torch.testing.assert_close(product, layer(x))
    torch.testing.assert_close(average, x.mean(-1, keepdim=True))


def test_logits_are_bitwise_those_of_the_row_alone_in_a_batch_and_in_a_tree():
    model = CudaModel(RandomCheckpoint(small_config()), "cpu", "float32", attention="by_position", deterministic=True)
    cache, pages, text = model.new_cache(16), (3, 0, 5, 1), tokens_of(20)
    path = [text[-1], 7, 9]
    tree = [text[-1], 7, 8, 9, 5, 6]
    model.forward(build_rows([Part(pages, 0, text[:-1])]), cache)
    others = Part((7, 9), 4, tokens_of(5))
    in_tree = model.forward(build_rows([others, Part(pages, 19, tree, (-1, 0, 0, 1, 2, 2))]), cache).logits[5 + 3]
    in_chunk = model.forward(build_rows([Part(pages, 19, path)]), cache).logits[2]
    by_itself = model.forward(build_rows([Part(pages, 21, path[2:])]), cache).logits[0]
    np.testing.assert_array_equal(in_tree, by_itself)
    np.testing.assert_array_equal(in_chunk, by_itself)


def test_pytorchs_attention_is_not_deterministic_enough():
    with pytest.raises(InvalidParameter, match="deterministic"):
        CudaModel(RandomCheckpoint(small_config()), "cpu", "float32", attention="sdpa", deterministic=True)
