"""Every kind of block from a file to logits: near its weights in float32, alone as in company, the same everywhere.

Also vocabularies and widths that fill no register, and embeddings and heads of other kinds than the rest.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.models.dtypes import choose_dtype
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.numba_executor import dot16
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from tests.fakes import RandomCheckpoint, small_config

from .test_blocks import by_gguf, random_blocks
from .tiny import gguf_metadata, gguf_name, write_gguf

pytestmark = pytest.mark.usefixtures("own_weight_cache")
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
FLOATS = ("F32", "F16", "BF16")
PAGES, OTHERS = (7, 3, 9, 1), (8, 2, 4, 0)
SPREAD = 0.06
"""Standard deviation of weights: layers then neither die away nor saturate."""


def stored(kind: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """A random matrix as `write_gguf` takes it: blocks of any bits, but weights of usual size; or floats."""
    if kind in FLOATS:
        return (SPREAD * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)
    spread = by_gguf(kind, random_blocks(kind, 8, 256, largest=1e-3)).std()
    return random_blocks(kind, *shape, seed=seed, largest=1e-3 * SPREAD / spread)


def model_file(path: Path, body: str, embedding: str, head: str | None = None, **changes) -> Path:
    """A model whose layers are of kind `body`; without a `head` the embedding is tied."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 32, "num_attention_heads": 8}
    tied = {"tie_word_embeddings": head is None, "num_hidden_layers": 2}
    config = small_config(**(shape | tied | changes))
    checkpoint, tensors, storage = RandomCheckpoint(config), {}, {}
    for number, name in enumerate(checkpoint.names()):
        values, theirs = checkpoint.tensor(name), gguf_name(config, name)
        if values.ndim == 2:
            storage[theirs] = embedding if "embed" in name else head if head and "lm_head" in name else body
            values = stored(storage[theirs], values.shape, number)
        tensors[theirs] = values
    return write_gguf(path, gguf_metadata(config), tensors, storage)


def some_tokens(vocab: int) -> list[int]:
    """The ends of the vocabulary among them."""
    return [vocab - 1, 0, vocab - 2, *np.random.default_rng(1).integers(0, vocab, 42).tolist()]


def run(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


def check(path: Path, dtype: str = "gguf", most: float = 0.03) -> NumbaModel:
    """Compare logits with those of float32 arithmetic, and of rows alone and in chunks beside another request."""
    checkpoint = GGUFCheckpoint(path)
    tokens = some_tokens(checkpoint.config.vocab_size)
    model, reference = (NumbaModel(checkpoint, name, num_threads=1) for name in (dtype, "float32"))
    whole, exact = (run(one, one.new_cache(4), Part(range(4), 0, tokens)) for one in (model, reference))
    assert whole.shape == (len(tokens), checkpoint.config.vocab_size)
    apart = (whole - exact).std(axis=1) / exact.std(axis=1)
    assert np.median(apart) <= most  # of single rows, attention that hangs in the balance may choose another token
    alone, together = model.new_cache(10), model.new_cache(10)
    rows = [run(model, alone, Part(PAGES, at, [token]))[0] for at, token in enumerate(tokens)]
    assert np.array_equal(np.stack(rows), whole)
    chunks = []
    for at in range(0, len(tokens), 7):
        company = Part(OTHERS, at, tokens[::-1][at : at + 7], logits="none")
        chunks.append(run(model, together, company, Part(PAGES, at, tokens[at : at + 7])))
    assert np.array_equal(np.concatenate(chunks), whole)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_each_kind(kind, tmp_path):
    model = check(model_file(tmp_path / "model.gguf", kind, kind), "auto")
    assert model.dtype_choice.name == "gguf"


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16")])
def test_files_of_16_bit_floats_are_multiplied_as_they_are(kind, dtype, tmp_path):
    rounds = kind == "BF16" and dot16.multiplies_pairs()  # activations, then, and not the weights
    model = check(model_file(tmp_path / "model.gguf", kind, kind, vocab_size=257), "auto", 0.01 if rounds else 0.0)
    assert model.dtype_choice.name == dtype


SMALL = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4}


@pytest.mark.parametrize("vocab", [31, 257, 1003])
@pytest.mark.parametrize(
    ("body", "embedding", "head", "shape"),
    [
        ("Q4_0", "Q8_0", None, SMALL), ("IQ4_NL", "Q5_1", "Q8_0", SMALL), ("Q5_0", "MXFP4", "Q4_1", SMALL),
        ("Q4_K", "Q8_0", "Q6_K", {}), ("Q5_K", "Q6_K", None, {"intermediate_size": 768}),
    ],
)  # fmt: skip
def test_vocabularies_that_fill_no_panel(vocab, body, embedding, head, shape, tmp_path):
    check(model_file(tmp_path / "model.gguf", body, embedding, head, vocab_size=vocab, **shape))


@pytest.mark.parametrize(("hidden", "inner"), [(32, 32), (96, 32), (160, 288), (288, 352)])
@pytest.mark.parametrize(("body", "head"), [("Q4_0", None), ("Q5_1", "Q8_0")])
def test_widths_of_whole_groups(hidden, inner, body, head, tmp_path):
    widths = {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 3, "num_key_value_heads": 1}
    check(model_file(tmp_path / "model.gguf", body, "Q4_1", head, **widths))


@pytest.mark.parametrize(("vocab", "auto"), [(1003, "gguf"), (2003, "float16")])
def test_an_embedding_of_more_bytes_than_the_rest(vocab, auto, tmp_path):
    """Most weights decide, not most bytes; blocks can be asked for as long as there are any."""
    path = model_file(tmp_path / "model.gguf", "Q4_0", "F16", None, vocab_size=vocab, **SMALL)
    assert choose_dtype("auto", GGUFCheckpoint(path), "numba", "cpu").name == auto
    check(path, "gguf")


PORTABLE = """
import sys
from pathlib import Path
from paceline.models.numba_executor import isa, weights
from tests.models import test_gguf_kinds as here
from numba.core.registry import cpu_target
features = "avx2", "f16c", "avx512f", "neon"
assert not any(isa.has_feature(cpu_target.target_context, feature) for feature in features)
weights.cache_dir = lambda: Path(sys.argv[1])
print(here.digest(Path(sys.argv[2])))
"""


def digest(path: Path) -> str:
    """Of the logits of a file, with keys and values in 8 bits, whose scales are rounded to float16 and widened."""
    checkpoint = GGUFCheckpoint(path)
    part = Part(range(4), 0, some_tokens(checkpoint.config.vocab_size))
    model = NumbaModel(checkpoint, "gguf", num_threads=1, kv_cache_dtype="int8")
    return hashlib.sha256(run(model, model.new_cache(4), part).tobytes()).hexdigest()


@pytest.mark.skipif(sys.platform == "win32", reason="one is enough: it takes a while to compile")
def test_a_processor_without_any_instruction_of_ours_gives_the_same_bits(tmp_path):
    """In a process of its own, for which LLVM generates code as for the oldest processor of this kind."""
    path = model_file(tmp_path / "model.gguf", "Q4_K", "Q6_K", "IQ4_XS", vocab_size=257)
    oldest = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", PORTABLE, str(tmp_path), str(path)],
        capture_output=True, text=True, timeout=900, env=os.environ | oldest, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [digest(path)]
