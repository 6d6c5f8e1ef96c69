"""Files that a reference library wrote are read as they are and compute what its modules did (golden/README.md)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.models.heads.files import read_head, save_head
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.tensor_file import read_safetensors
from paceline.models.rows import Part, build_rows
from tests.models.heads.tiny_heads import assert_equal

torch = pytest.importorskip("torch")
GOLDEN = Path(__file__).parent / "golden"
ANCHOR = 12
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def golden(name: str) -> tuple[HeadRecord, dict[str, np.ndarray]]:
    return read_head(GOLDEN / name), read_safetensors(GOLDEN / name / "arrays.safetensors")


def net_for(record: HeadRecord, arrays: dict[str, np.ndarray]):
    from paceline.models.torch_executor.heads.build import net_of

    table = torch.from_numpy(arrays["embedding"].copy())
    return net_of(record, table, table)


@pytest.mark.parametrize("name", ["eagle3.1", "eagle3-qwen3"])
def test_eagle3(name: str) -> None:
    record, arrays = golden(name)
    net, tokens = net_for(record, arrays), arrays["tokens"].tolist()
    rows = build_rows([Part(range(2), 0, tokens[1:])])
    logits = net.forward(rows, net.project(arrays["taps"][:-1]).copy(), net.new_cache(2)).logits
    np.testing.assert_allclose(logits, arrays["logits"], **TOLERANCE)


def test_dspark() -> None:
    record, arrays = golden("dspark")
    net, config = net_for(record, arrays), record.config
    cache, places = net.new_cache(2), np.arange(ANCHOR, dtype=np.int32)
    net.inject(arrays["taps"][:ANCHOR], places, places, cache)
    tokens = [int(arrays["tokens"][ANCHOR]), *[config.mask_token_id] * (config.block_size - 1)]
    keys = np.full(config.block_size, ANCHOR + config.block_size, np.int32)
    rows = replace(build_rows([Part(range(2), ANCHOR, tokens)]), natural_lengths=keys, num_keys=keys)
    output = net.forward(rows, cache)
    np.testing.assert_allclose(output.logits, arrays["logits"], **TOLERANCE)
    before = np.array([5, 6, 7], np.int32)
    np.testing.assert_allclose(net.confidence(output.hidden[:3], before), arrays["confidence"], **TOLERANCE)
    np.testing.assert_allclose(net.bias(np.arange(40, dtype=np.int32)), arrays["bias"], **TOLERANCE)


@pytest.mark.parametrize("name", ["eagle3.1", "eagle3-qwen3", "dspark"])
def test_they_are_saved_and_read_as_the_same_head(tmp_path: Path, name: str) -> None:
    record, _ = golden(name)
    save_head(record, tmp_path)
    assert_equal(read_head(tmp_path), record)
