"""Make a head of the form that is trained today out of a smaller one, so that training goes on with what it knows.

    python tools/grow_head.py smollm2-135m/dspark grown/dspark
    paceline train head dspark --resume grown/dspark --answers FILE --rate 1e-3 -o heads/dspark

What is new computes nothing at first (Net2Net, Chen et al. 2016): key heads are repeated for the query heads that share
them, further columns of a bias are read by zeros, and units of a wider state are copies of others, whose readers share
the weight between them. A speculator whose steps are to share their weights takes those of its first steps. Further
residual blocks are zeros.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.models.heads.draft_ids import to_mask
from paceline.models.heads.files import save_head
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.registry import load_head
from paceline.models.heads.shapes import head_shapes
from paceline.models.resolve import resolve_model
from paceline.training.heads.recipes import recipe_of
from paceline.training.heads.target import training_target

_APART, _TOLD_APART = 0.02, 0.5
"""Noise that tells copies apart, over the deviation of the weights: on what a unit reads, and on what reads it (there a
copy has as much less as the other has more, so that nothing changes at first)."""

Tensors = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", help="a folder, or TARGET/NAME of a shipped one")
    parser.add_argument("output", type=Path, help="folder of the grown head")
    parser.add_argument("-m", "--model", default="smollm2-135m", help="its target")
    args = parser.parse_args()
    source = resolve_model(args.model)
    record = load_head(args.head, source)
    recipe = recipe_of(record.config.family)
    target = training_target(source, any_logits=recipe.learns_any_logits)
    wanted = recipe.describe(target, record.config.draft_vocab_size, record.config.num_steps)
    save_head(grown(record, wanted), args.output)
    print(args.output)


def grown(record: HeadRecord, wanted: HeadConfig) -> HeadRecord:
    """`record` in the form `wanted`, of the same family. Raises ValueError for a family that has not grown."""
    if record.config.family not in _GROWERS:
        raise ValueError(f"heads of the family {record.config.family} have not grown")
    config, tensors = _GROWERS[record.config.family](record, wanted, np.random.default_rng(0))
    return replace(record, config=config, tensors=tensors)


def _dspark(record: HeadRecord, wanted: HeadConfig, rng: np.random.Generator) -> tuple[HeadConfig, Tensors]:
    """A key head for each query head; a bias of higher rank, for tokens of the draft vocabulary only."""
    config, layer, tensors = record.config, record.config.layer, dict(record.tensors)
    assert layer is not None and wanted.layer is not None
    times = wanted.layer.num_key_value_heads // layer.num_key_value_heads
    for name in [one for one in tensors if one.endswith(("k_proj.weight", "v_proj.weight"))]:
        heads = tensors[name].reshape(layer.num_key_value_heads, layer.head_dim, -1)
        tensors[name] = np.repeat(heads, times, axis=0).reshape(-1, heads.shape[-1])
    vocabulary, more = config.target.vocab_size, wanted.markov_rank - config.markov_rank
    named = np.ones(vocabulary, bool) if record.draft_ids is None else to_mask(record.draft_ids, vocabulary)
    table, rows = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
    fresh = rng.standard_normal((vocabulary, more), np.float32) * wanted.markov_rank**-0.5
    tensors[table] = np.hstack([tensors[table], fresh]) * named[:, None]
    for name in (rows, "confidence_head.proj.weight"):
        tensors[name] = np.pad(tensors[name], ((0, 0), (0, more)))
    heads = wanted.layer.num_key_value_heads
    return replace(config, layer=replace(layer, num_key_value_heads=heads), markov_rank=wanted.markov_rank), tensors


def _mlp_speculator(record: HeadRecord, wanted: HeadConfig, rng: np.random.Generator) -> tuple[HeadConfig, Tensors]:
    """A wider state, and weights that the steps share: those of the first steps."""
    before, after = record.config.inner_size, wanted.inner_size
    of = np.concatenate([np.arange(before), rng.permutation(before)[: after - before]])
    copies = np.bincount(of, minlength=before)[of].astype(np.float32)
    sides = np.where(np.arange(after) < before, 1, -1) * (copies > 1)

    def noise(values: np.ndarray) -> np.ndarray:
        return rng.standard_normal(values.shape, np.float32) * values.std()

    def read_by(values: np.ndarray) -> np.ndarray:
        return values[:, of] / copies + _TOLD_APART * sides * noise(values)[:, of]

    def reading(values: np.ndarray) -> np.ndarray:
        return values[of] + _APART * noise(values[of])

    tensors: Tensors = {}
    for name in head_shapes(replace(record.config, tied=wanted.tied)):
        values = record.tensors[name]
        if name in ("embed_proj.weight", "proj.0.weight"):
            tensors[name] = reading(values)
        elif name == "head_proj.weight":
            tensors[name] = read_by(values)
        else:
            tensors[name] = read_by(values)[of] if values.ndim == 2 else values[of]
    return replace(record.config, inner_size=after, tied=wanted.tied, embedding_scale=wanted.embedding_scale), {
        name: values.astype(np.float32) for name, values in tensors.items()
    }


def _medusa(record: HeadRecord, wanted: HeadConfig, rng: np.random.Generator) -> tuple[HeadConfig, Tensors]:
    """Further residual blocks of zeros, which add silu(0) = 0; heads beyond those that were there are not made."""
    config = replace(record.config, block_depth=wanted.block_depth)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in head_shapes(config).items()}
    return config, zeros | dict(record.tensors)


_GROWERS = {"dspark": _dspark, "mlp_speculator": _mlp_speculator, "medusa": _medusa}


if __name__ == "__main__":
    main()
