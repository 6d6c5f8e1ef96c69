"""The model under test in the formats other engines read, each made once and kept in the cache folder.

`python benchmarks/peers/weights.py smollm2-135m` prints its folder and its GGUF file in float32.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # as a script its folder comes first, where `transformers` is a module of ours
    sys.path.remove(str(Path(__file__).parent))

from paceline.models.cache_dir import cache_dir
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.resolve import resolve_model


def gguf_path(model: str) -> Path:
    """The GGUF file behind a model name."""
    return _checkpoint(model).path


def requantised(model: str, storage: str) -> Path:
    """A GGUF file of the same weights with every matrix stored as `storage`, such as Q8_0."""
    return _made(model, f"{storage}.gguf", lambda path: _requantise(gguf_path(model), path, storage))


def transformers_folder(model: str) -> Path:
    """A folder of the dequantised float32 weights and the tokenizer as transformers writes one."""
    return _made(model, "transformers", lambda folder: _save(gguf_path(model), folder))


def converted(model: str, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` that `make` fills."""
    return _made(model, name, make)


def load_transformers(path: Path):
    """transformers' float32 model of a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def _checkpoint(model: str) -> GGUFCheckpoint:
    checkpoint = resolve_model(model).checkpoint
    if not isinstance(checkpoint, GGUFCheckpoint):
        raise SystemExit(f"--peer needs a model in a GGUF file, {model} is none")
    return checkpoint


def _made(model: str, name: str, make: Callable[[Path], None]) -> Path:
    """Made under another name first, so that an interrupted conversion is not taken for a whole one."""
    folder = cache_dir() / "peers" / _checkpoint(model).fingerprint
    path, unfinished = folder / name, folder / f"unfinished-{name}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        print(f"converting {model} to {path}", file=sys.stderr)
        make(unfinished)
        unfinished.replace(path)
    return path


def _requantise(source: Path, path: Path, storage: str) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, quants

    reader, kind = GGUFReader(source), GGMLQuantizationType[storage]
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_file_type(LlamaFileType["ALL_F32" if storage == "F32" else f"MOSTLY_{storage}"])
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _save(source: Path, folder: Path) -> None:
    """transformers will not save a model that came from a GGUF file: its weights move to a fresh one."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    loaded = load_transformers(source)
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    fresh = AutoModelForCausalLM.from_config(config, dtype=loaded.dtype)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


if __name__ == "__main__":
    model = sys.argv[1]
    print(transformers_folder(model), requantised(model, "F32"), sep="\n")
