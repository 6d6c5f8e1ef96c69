"""EAGLE-3 outside of `speculators`: SafeAILab, SGLang and SpecForge (``midlayer.``), NVIDIA (``eagle_config``).

Files do not say how they number layers, and one key has two meanings: for SpecForge ``norm_output`` (true by default)
is a norm before the head, elsewhere it means that the normed state is fed back. Both are inferred, reported in the
record's notes, and can be overridden (`Reading`).
"""

from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.heads import draft_ids as vocabulary
from paceline.models.heads.layer_config import layer_values, read_layer
from paceline.models.heads.layouts.base import (
    HeadFiles,
    Layout,
    Parts,
    Reading,
    TargetTables,
    assemble,
    read_draft_ids,
)
from paceline.models.heads.own_block import KEY, OwnBlock, own_block, read_own_block
from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.models.heads.shapes import layer_of
from paceline.models.heads.strict import Settings
from paceline.models.heads.taps import Convention, canonical_taps, eagle3_default, file_ids, told

NAME = "sglang"
_NESTED, _IDS = "eagle_config", "eagle_aux_hidden_state_layer_ids"
_STEPS = 5
"""Draft length of SGLang and of the authors; the files have none."""


def matches(files: HeadFiles) -> bool:
    """Whether the tensors have a ``midlayer``, or a norm of the hidden state in the first layer."""
    names = {name.removeprefix("model.") for name in files.tensors}
    return any(name.startswith("midlayer.") for name in names) or "layers.0.hidden_norm.weight" in names


def read(files: HeadFiles, reading: Reading) -> HeadRecord:
    """The head in `files`; see `Layout.read`."""
    settings = Settings(files.values, files.path)
    own, nested = read_own_block(settings), settings.inner(_NESTED)
    layer = read_layer(settings)
    width = settings.take("target_hidden_size", nested.take("target_hidden_size", layer.hidden_size))
    target = own.target or reading.print_of(files.path, hidden_size=width, vocab_size=layer.vocab_size)
    size = settings.count("draft_vocab_size", layer.vocab_size)
    if not nested.flag("use_aux_hidden_state", True):
        raise nested.wrong("use_aux_hidden_state", "is false: the head reads one state", "use a head with three taps")
    settings.skip("num_lookahead_tokens")
    taps, told_taps = _taps(settings, nested, target.num_hidden_layers, reading)
    norm_output, told_norm = _norm_output(settings, nested, reading)
    ids = read_draft_ids(files, own, size, layer.vocab_size)
    config = HeadConfig(
        family="eagle3", target=target, taps=taps, layer=layer, num_layers=layer.num_hidden_layers, num_steps=_STEPS,
        draft_vocab_size=size, norm_before_fc=_either(settings, nested, "norm_before_fc"),
        fc_norm=_either(settings, nested, "fc_norm"), fc_bias=settings.flag("bias", False),
        norm_before_residual=_either(settings, nested, "norm_before_residual"), norm_output=norm_output,
        owns_embedding=own.owns_embedding and any("embed_tokens" in name for name in files.tensors),
        owns_head=_owns_head(files, own, size, layer.vocab_size),
        max_positions=own.max_positions or layer.max_position_embeddings,
    )  # fmt: skip
    if layer.num_hidden_layers > 1:
        raise settings.wrong(
            "num_hidden_layers", f"{layer.num_hidden_layers}: programs differ in what layers after the first compute",
            "convert the head to the speculators layout with its own tools",
        )  # fmt: skip
    notes = (told_taps, *told_norm, *settings.finish(), *nested.finish())
    ignored = () if config.owns_embedding else ("embed_tokens.", "model.embed_tokens.")
    tied = () if config.owns_head else ("lm_head.",)
    return assemble(files, Parts(config, ids, own.card, notes), _renamed, (*ignored, *tied))


def write(record: HeadRecord, tables: TargetTables | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and tensors of `record` as SGLang reads them; see `Layout.write`.

    Raises:
        InvalidParameter: the head has a form of EAGLE-3 that SGLang does not support.
    """
    config = record.config
    for name in ("fc_norm", "norm_output", "norm_before_residual", "fc_bias"):
        if getattr(config, name):
            remedy = "convert with --one-norm" if config.fc_norm else "train an EAGLE-3 head without it"
            raise InvalidParameter(name, "is not computed by SGLang's Llama draft", remedy)
    if config.taps[0] != 2:
        raise InvalidParameter(
            "taps", f"{list(config.taps)} would be read by SGLang as other layers", "use a head whose first tap is 2"
        )
    values = layer_values(layer_of(config), config.num_layers)
    values |= {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "draft_vocab_size": config.draft_vocab_size, "target_hidden_size": config.target.hidden_size,
        "norm_before_fc": config.norm_before_fc,
        _NESTED: {_IDS: file_ids(config.taps, "leaving"), "use_aux_hidden_state": True}, KEY: own_block(record),
    }  # fmt: skip
    tensors = {name.replace("layers.0.", "midlayer.", 1): array for name, array in record.tensors.items()}
    if tables is not None and not config.owns_head:
        tensors["lm_head.weight"] = tables.head_rows(record.draft_ids)
    ids = np.arange(config.draft_vocab_size) if record.draft_ids is None else record.draft_ids
    tensors["d2t"] = vocabulary.to_offsets(ids)
    tensors["t2d"] = vocabulary.to_mask(ids, config.target.vocab_size)
    return values, tensors


def _taps(settings: Settings, nested: Settings, num_layers: int, reading: Reading) -> tuple[tuple[int, ...], str]:
    ids = settings.take(_IDS, nested.take(_IDS, None))
    if ids is None:
        if not num_layers:
            raise settings.wrong(_IDS, "is missing and the target is not known", "name the target (-m MODEL), too")
        taps = eagle3_default(num_layers)
        return taps, told(taps, None, "EAGLE's default was taken")
    convention: Convention = reading.convention or "leaving"
    reason = f"as layers that states {'leave, as SGLang and NVIDIA count' if convention == 'leaving' else 'enter'}"
    if reading.convention is None and num_layers and ids == list(eagle3_default(num_layers)):
        convention, reason = "entering", "as layers that states enter, being EAGLE's default"
    taps = canonical_taps(ids, convention, num_layers, f"{settings.source}: {_IDS}")
    return taps, told(taps, ids, reason)


def _norm_output(settings: Settings, nested: Settings, reading: Reading) -> tuple[bool, tuple[str, ...]]:
    said = settings.take("norm_output", nested.take("norm_output", None))
    if reading.norm_output is not None or said is None:
        return bool(reading.norm_output), ()
    if not said:
        raise settings.wrong("norm_output", "is false: SpecForge would skip the norm before the output head", "say "
                             "--norm-output or --no-norm-output if the file means what is fed back")  # fmt: skip
    return False, ("norm_output: read as SpecForge's (a norm before the head); --norm-output reads it as EAGLE-3.1's",)


def _either(settings: Settings, nested: Settings, name: str) -> bool:
    """A flag of the config's top level or of NVIDIA's ``eagle_config``."""
    return settings.flag(name, nested.flag(name, False))


def _owns_head(files: HeadFiles, own: OwnBlock, size: int, vocab_size: int) -> bool:
    """Whether the head has its own ``lm_head``; with the whole vocabulary, a file without one uses the target's."""
    if own.target is not None:
        return own.owns_head
    return "lm_head.weight" in files.tensors or size != vocab_size


def _renamed(name: str) -> str:
    name = name.removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


LAYOUT = Layout(NAME, "EAGLE-3 of SafeAILab, SGLang, SpecForge and NVIDIA", matches, read, write, ("eagle3",))
