"""Damaged model files: each is read whole, and must be refused in one line or work.

``python -m tests.models.fuzz --files 3000 --seed 0`` prints what became of them and ends with 1 where anything but an
error of this project escaped, took seconds, took memory, or was accepted though it must not be. The tests run a few.
"""

import argparse
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from paceline.errors import PacelineError
from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.text.tokenizer import Tokenizer
from paceline.models.text.tokenizer_folder import tokenizer_from_folder
from tests.fakes import RandomCheckpoint, small_config

from .tiny import as_gguf
from .vocabularies import sentencepiece_backend, sentencepiece_gguf

MOST_SECONDS, MOST_BYTES = 5.0, 300 << 20
"""Processor time and memory that a file of some kilobytes may take."""
NASTY: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, -0.5, 1e400, "", "x", "../../etc/passwd", "\ud800", [], [[]], [0, "x", None],
    {}, {"a": {}}, [1e400] * 3, "9" * 5000, {"type": "Sequence", "decoders": [None]}, [2**40] * 4, 10**4000,
]  # fmt: skip
TEMPLATES = [
    "{% for a in range(9**9) %}{% for b in range(9**9) %}x{% endfor %}{% endfor %}", "{{ 'a' * 300000000 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ messages[99].content }}", "{% if %}", "{{ 1 / 0 }}",
    "{{ [1] * 10**10 }}", "{{ 9**9**9 }}", "{{ ''.__class__.mro() }}", "{{ raise_exception('no') }}",
    "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a }}",
    "{{ 'x'|center(10**9) }}", "{{ '%1000000000d' % 1 }}",
]  # fmt: skip
MESSAGES = [{"role": "user", "content": "the cat"}]
LLAMA = {
    "model_type": "llama", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "rope_theta": 10000.0, "eos_token_id": [2], "hidden_act": "silu",
    "attention_bias": False, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip


def make_bases(home: Path) -> tuple[Path, Path]:
    """A folder of a small Llama with its tokenizer and an index, and a GGUF file of it."""
    backend = sentencepiece_backend()
    vocab_size = backend.get_vocab_size()
    checkpoint = RandomCheckpoint(small_config(vocab_size=vocab_size, num_hidden_layers=2))
    folder = home / "model"
    folder.mkdir()
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    save_file(tensors, folder / "a.safetensors")
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}",
        "added_tokens_decoder": {"2": {"content": "</s>", "special": True}}, "extra_special_tokens": ["<s>"],
    }  # fmt: skip
    for name, values in {
        "config.json": LLAMA | {"vocab_size": vocab_size}, "generation_config.json": {"eos_token_id": 2},
        "model.safetensors.index.json": {"weight_map": dict.fromkeys(tensors, "a.safetensors")},
        "tokenizer_config.json": settings,
    }.items():  # fmt: skip
        (folder / name).write_text(json.dumps(values))
    return folder, as_gguf(home / "model.gguf", checkpoint, sentencepiece_gguf())


def read(path: Path) -> None:
    """Open everything, as somebody who generates would."""
    if path.suffix == ".gguf":
        checkpoint = GGUFCheckpoint(path)
        tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    else:
        checkpoint, tokenizer = SafetensorsCheckpoint(path), tokenizer_from_folder(path)
    for name, shape in tensor_shapes(checkpoint.config).items():
        values = checkpoint.tensor(name)
        assert values.shape == shape and values.dtype == np.float32 and np.isfinite(values).all(), name
    assert all(0 <= i < 2**31 for i in tokenizer.encode("the cat"))
    if tokenizer.has_chat_template:
        assert all(i >= 0 for i in tokenizer.encode_chat(MESSAGES))


# Each of these damages a file and says whether it must be refused.
def flip_bytes(path: Path, rng: random.Random) -> bool:
    """Some bytes of the part that describes the rest."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        data[rng.randrange(min(len(data), 12_000))] = rng.randrange(256)
    path.write_bytes(data)
    return False


def cut(path: Path, rng: random.Random) -> bool:
    """The end is missing."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) - 64)])
    return True


def replace_value(path: Path, rng: random.Random) -> bool:
    """A value somewhere in a JSON file becomes another one."""
    values = json.loads(path.read_text())
    at = values
    while True:
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], (dict, list)) or not at[key] or rng.random() < 0.3:
            break
        at = at[key]
    at[key] = rng.choice(NASTY)
    path.write_text(json.dumps(values))
    return False


def nest(path: Path, rng: random.Random) -> bool:
    """JSON that is 100,000 deep."""
    path.write_text('{"a":' * 100_000 + rng.choice(("1", "")) + "}" * 100_000)
    return True


def _change_table(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:end])
    change(table)
    text = json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def replace_in_table(path: Path, rng: random.Random) -> bool:
    """A shape, offset or type in the table of a safetensors file becomes anything."""

    def change(table: dict[str, Any]) -> None:
        table[rng.choice(list(table))][rng.choice(("shape", "data_offsets", "dtype"))] = rng.choice(NASTY)

    _change_table(path, change)
    return True


def move_tensor(path: Path, rng: random.Random) -> bool:
    """A tensor begins before the data, or inside another one."""

    def change(table: dict[str, Any]) -> None:
        entry = rng.choice(list(table.values()))
        begin, end = entry["data_offsets"]
        by = rng.choice((-begin - 4, 4 if begin < end - 8 else -4, -begin - 400))
        entry["data_offsets"] = [begin + by, end + by]

    _change_table(path, change)
    return True


def spoil_weight(path: Path, rng: random.Random) -> bool:
    """One weight is no number."""
    data = bytearray(path.read_bytes())
    at = 8 + int.from_bytes(data[:8], "little") + 4 * rng.randrange(1000)
    data[at : at + 4] = np.array([rng.choice((np.nan, np.inf, -np.inf))], np.float32).tobytes()
    path.write_bytes(data)
    return True


def lead_outside(path: Path, rng: random.Random) -> bool:
    """The index names a file outside the folder."""
    values = json.loads(path.read_text())
    name = rng.choice(list(values["weight_map"]))
    values["weight_map"][name] = rng.choice(("../a.safetensors", "/etc/passwd", "x/../../a.safetensors", "", 7, None))
    path.write_text(json.dumps(values))
    return True


def end_nowhere(path: Path, rng: random.Random) -> bool:
    """The end of a text is no token of the model."""
    path.write_text(json.dumps({"eos_token_id": rng.choice((-1, 10**6, [2, 10**6], 2.0, "2", [[2]], True))}))
    return True


def bad_template(path: Path, rng: random.Random) -> bool:
    """A chat template that would run for ever, take all memory, or fail."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": rng.choice(TEMPLATES)}))
    return False


Damage = Callable[[Path, random.Random], bool]
GGUF, WEIGHTS, INDEX, SETTINGS = "model.gguf", "a.safetensors", "model.safetensors.index.json", "tokenizer_config.json"
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", SETTINGS, INDEX)
KINDS: list[tuple[str, Damage]] = [
    *((GGUF, damage) for damage in (flip_bytes, flip_bytes, flip_bytes, flip_bytes, cut)),
    *((WEIGHTS, damage) for damage in (flip_bytes, cut, replace_in_table, move_tensor, spoil_weight)),
    *((name, damage) for name in JSON_FILES for damage in (replace_value, replace_value, flip_bytes, nest)),
    ("config.json", replace_value), ("config.json", replace_value), ("generation_config.json", end_nowhere),
    (INDEX, lead_outside), (SETTINGS, bad_template), (SETTINGS, bad_template),
]  # fmt: skip


def run_one(bases: tuple[Path, Path], seed: int) -> tuple[str, str]:
    """(what became of file number `seed`, the details where it matters)."""
    rng = random.Random(seed)
    name, damage = KINDS[seed % len(KINDS)]
    with tempfile.TemporaryDirectory() as home:
        if name == GGUF:
            path = damaged = Path(shutil.copy(bases[1], home))
        else:
            path = Path(shutil.copytree(bases[0], Path(home) / "model"))
            damaged = path / name
        must_refuse = damage(damaged, rng)
        return _judge(path, must_refuse, f"{seed} {name} {damage.__name__}")


def _judge(path: Path, must_refuse: bool, label: str) -> tuple[str, str]:
    started, memory, details = time.process_time(), _peak(), label
    try:
        read(path)
        outcome = "wrongly accepted" if must_refuse else "accepted"
    except PacelineError as error:
        outcome = "refused" if len(str(error)) < 1000 else "too long an error"
    except MemoryError:
        outcome = "memory"
    except BaseException:  # also what a compiled library panics with
        outcome, details = "traceback", f"{label}\n{traceback.format_exc(limit=-3)}"
    if time.process_time() - started > MOST_SECONDS:
        outcome = "hang"
    return ("memory", label) if _peak() - memory > MOST_BYTES else (outcome, details)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Read `count` damaged files: how often each thing happened, and the details of what must not."""
    counts: Counter[str] = Counter()
    faults = []
    with tempfile.TemporaryDirectory() as home:
        bases = make_bases(Path(home))
        for base in bases:
            read(base)
        for number in range(seed, seed + count):
            outcome, details = run_one(bases, number)
            counts[outcome] += 1
            if outcome not in ("refused", "accepted"):
                faults.append(f"{outcome}: {details}")
    return counts, faults


def main() -> int:
    """Read many; 1 where something must be mended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts, faults = run(given.files, given.seed)
    print(*faults, json.dumps(counts), sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
