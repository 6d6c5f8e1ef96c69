import pytest

from paceline.errors import InvalidParameter
from paceline.placement import ParallelConfig
from paceline.placement.cost import (
    Device,
    LayerWork,
    analytic_costs,
    measured_costs,
    transformer_layers,
)
from paceline.placement.parallelise import profile_from_layers
from paceline.speculation import CostProfile


def test_a_layer_is_bound_by_arithmetic_or_by_memory():
    device = Device(peak=100.0, bandwidth=10.0)
    assert LayerWork(operations=500, weight_bytes=10, output_bytes=1).seconds(device, 1) == 5.0
    assert LayerWork(operations=5, weight_bytes=100, output_bytes=1).seconds(device, 1) == 10.0


def test_tensor_parallel_layers_pay_for_their_sums():
    device = Device(peak=100.0, bandwidth=1e9, link_bandwidth=50.0, link_latency=0.25)
    layer = LayerWork(operations=400, weight_bytes=0, output_bytes=100)
    # four devices: a quarter of the work, and two rings of 2 * 3 messages with 25 bytes each
    assert layer.seconds(device, 4) == 1 + 2 * 6 * (0.25 + 25 / 50)


def test_a_transformer_counts_its_parameters():
    layers = transformer_layers(num_layers=3, hidden_size=10, num_tokens=4, vocab_size=50)
    assert len(layers) == 4
    assert layers[0].weight_bytes == 2 * 12 * 10**2
    assert layers[0].operations == 2 * 1200 * 4 + 4 * 10 * 16
    assert layers[-1].weight_bytes == 2 * 500 and layers[-1].all_reduces == 1


def test_profile_of_a_transformer():
    device = Device(peak=1e14, bandwidth=9e11, link_bandwidth=1e11, link_latency=1e-5)
    layers = transformer_layers(num_layers=24, hidden_size=2048, num_tokens=512, vocab_size=32000)
    profile = profile_from_layers("1.3b", analytic_costs(layers, device, (1, 2, 4)), max_devices=8)
    one, tensor, pipe = (profile.stages(ParallelConfig(*split)) for split in ((1, 1), (4, 1), (1, 4)))
    assert tensor.total_latency < one.total_latency < pipe.total_latency  # only tensor parallelism shortens a request
    assert pipe.bottleneck < tensor.bottleneck  # and a pipeline carries more of them
    assert max(tensor.weight_mem) == pytest.approx(max(one.weight_mem) / 4)


def test_measured_passes_are_spread_over_equal_layers():
    curve = CostProfile({1: 0.01, 8: 0.02})
    profile = profile_from_layers("m", measured_costs(curve, 8, 10, 100.0, hand_over=1e-3), max_devices=2)
    assert profile.stages(ParallelConfig(1, 1)).total_latency == pytest.approx(0.02)
    assert profile.stages(ParallelConfig(1, 2)).latency == pytest.approx((0.011, 0.01))


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("peak", lambda: Device(0, 1)),
        ("link_latency", lambda: Device(1, 1, 1, -1)),
        ("layers", lambda: transformer_layers(0, 1, 1)),
        ("layers", lambda: measured_costs(CostProfile({1: 1.0}), 0, 1, 1.0)),
    ],
)
def test_bad_input_is_refused(field, call):
    with pytest.raises(InvalidParameter) as refused:
        call()
    assert refused.value.field == field
