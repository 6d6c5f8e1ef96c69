"""What a pass begins and ends with, run by Triton's interpreter, against torch."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from paceline.models.cuda_executor import laws  # noqa: E402
from paceline.models.cuda_executor.kernels.ends import embedded, likeliest, peaks_of, row_angles  # noqa: E402
from paceline.models.cuda_executor.laws import chains  # noqa: E402
from paceline.models.torch_executor import layers  # noqa: E402

MAKE = torch.Generator().manual_seed(8)
NAN, LEAST = float("nan"), float("-inf")


def test_rows_of_a_table_are_widened_and_picks_taken():
    table = torch.randn(50, 24, generator=MAKE).half()
    tokens, picks = torch.tensor([3, -1, 49, -3], dtype=torch.int32), torch.tensor([7, 8, 9], dtype=torch.int32)
    assert torch.equal(embedded(tokens, picks, table), table[[3, 7, 49, 9]].float())
    assert embedded(tokens[:0], picks, table).shape == (0, 24)
    share = embedded(tokens, picks, table[4:9], first=4)
    assert torch.equal(share[1], table[7].float()) and not share[[0, 2, 3]].any()


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_angles_of_rows(factor):
    positions, frequencies = torch.tensor([0, 3, 700], dtype=torch.int32), torch.rand(12, generator=MAKE)
    for ours, want in zip(row_angles(positions, frequencies, factor), layers.row_angles(positions, frequencies, factor),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(ours, want, atol=1e-5, rtol=0)


def test_peaks_are_those_of_torch_the_first_on_ties():
    logits = torch.randn(6, 9000, generator=MAKE)
    logits[1, [17, 8000]] = 30.0
    logits[2] = LEAST
    logits[3, [4096, 4095]] = 31.0
    picks = torch.full((8,), -5, dtype=torch.int32)
    table = peaks_of(logits, picks)
    assert torch.equal(table, laws.peaks_of(logits))
    assert picks.tolist() == [*table[:, 0].int().tolist(), -5, -5]
    assert [int(table[row, 0]) for row in (1, 2, 3)] == [17, 0, 4095]


@pytest.mark.parametrize("place", [0, 4100, 8999])
def test_one_number_that_is_none_spoils_its_row_alone(place):
    logits = torch.randn(3, 9000, generator=MAKE)
    logits[1, place] = NAN
    table = peaks_of(logits, torch.zeros(3, dtype=torch.int32))
    assert table[:, 1].isnan().tolist() == [False, True, False]
    assert torch.equal(table[[0, 2]], laws.peaks_of(logits)[[0, 2]])


def test_the_likeliest_token_and_its_probability_are_those_of_torch():
    logits = 3 * torch.randn(6, 9000, generator=MAKE)
    logits[1, [17, 8000]] = 30.0
    logits[2, 4096:] = LEAST
    logits[3, :4096] = LEAST
    logits[4] = -3.0
    for ours, want in zip(likeliest(logits), chains.likeliest(logits), strict=True):
        torch.testing.assert_close(ours, want, atol=0, rtol=1e-4)
    assert likeliest(logits[:0])[0].shape == (0,)
    assert likeliest(torch.full((1, 5000), NAN))[0].item() in range(5000)
