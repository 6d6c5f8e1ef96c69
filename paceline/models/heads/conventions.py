"""A head's conventions in words, for `paceline heads inspect` and for the beginning of its card.

These are settings that programs have silently got wrong, so each is listed, including those with default values.
"""

from math import prod

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.shapes import head_shapes

_TOKEN_SHIFT = {
    "eagle": "row p holds the token at p + 1 and the hidden state at p",
    "falcon": "row p holds the token at p + 1 and the hidden state at p, and names the token at p + k + 1",
    "dflash": "a block starts with the last committed token, masks follow",
    "steps": "reads the hidden state before the last token, then tokens",
}


def conventions(record: HeadRecord) -> list[tuple[str, str]]:
    """(name, value) pairs in the order in which they are printed."""
    config, target = record.config, record.config.target
    pairs = [
        ("family", config.family + (f" ({config.variant})" if config.variant else "")),
        ("target", f"{target.name or 'not said'}, width {target.hidden_size}, {target.vocab_size} tokens, "
                   f"{target.num_hidden_layers or 'unknown'} layers"),
        ("target weights (sha256)", target.sha256 or "not said"),
        ("chat template (sha256)", target.template_sha256 or "not said"),
        ("taps", _taps(config.taps)),
        ("drafts", f"{config.num_steps} tokens" + (f" in a block of {config.block_size} rows" * _is_block(record))),
        ("draft vocabulary", _vocabulary(record)),
        ("tables", f"embeddings {_whose(config.owns_embedding)}, output head {_whose(config.owns_head)}"),
        ("parameters", f"{sum(prod(shape) for shape in head_shapes(config).values()) / 1e6:.2f} M"),
    ]  # fmt: skip
    return pairs + (_layers(record) if config.layer else _steps(record)) + [("token shift", _shift(record))]


def _layers(record: HeadRecord) -> list[tuple[str, str]]:
    config, layer = record.config, record.config.layer
    assert layer is not None
    pairs = [
        ("layers", f"{config.num_layers} of width {layer.hidden_size}, {layer.num_attention_heads} query and "
                   f"{layer.num_key_value_heads} key heads of {layer.head_dim}" + ", with norms" * layer.qk_norm),
        ("positions", f"theta {layer.rope_theta:g}, {'scaled' if layer.rope_inv_freq_scale else 'not scaled'}, "
                      f"trained to {config.max_positions or layer.max_position_embeddings}"),
        ("bias of fc", _yes(config.fc_bias)),
    ]  # fmt: skip
    if config.family in ("eagle3", "p_eagle"):
        fed = "after the last norm" if config.norm_output else "before the last norm"
        norm = "over all taps" if config.norm_before_fc else "per tap" if config.fc_norm else "none"
        pairs += [
            ("norm before fc", norm),
            ("residual", "of the normed hidden state" if config.norm_before_residual else "of the state as it came"),
            ("fed back", "a mask's state" if config.family == "p_eagle" else fed),
        ]
    if config.family == "dspark":
        pairs += [("markov rank", str(config.markov_rank)), ("confidence", _yes(config.confidence))]
    if config.block_tokens > 1:
        pairs.append(("tokens per pass (k)", str(config.block_tokens)))
    if config.mask_token_id is not None:
        pairs.append(("mask token", str(config.mask_token_id)))
    return pairs


def _steps(record: HeadRecord) -> list[tuple[str, str]]:
    config = record.config
    if config.family == "medusa":
        return [("blocks per head", f"{config.block_depth}, {'with' if config.fc_bias else 'without'} bias")]
    if config.family in ("mlp_speculator", "lstm_speculator"):
        return [
            (
                "state",
                f"{config.inner_size} wide, weights {'shared by' if config.tied else 'of their own for'} the steps",
            ),
            ("input normed", _yes(config.scale_input)),
        ]
    return []


def _taps(taps: tuple[int, ...]) -> str:
    if taps == (NORMED,):
        return "the state after the final norm"
    return f"{', '.join(map(str, taps))} (each enters the layer of that number)"


def _vocabulary(record: HeadRecord) -> str:
    if record.draft_ids is None:
        return f"all {record.config.target.vocab_size} tokens"
    return f"{record.draft_ids.size} of {record.config.target.vocab_size} tokens"


def _whose(own: bool) -> str:
    return "its own" if own else "the target's"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _is_block(record: HeadRecord) -> bool:
    return record.config.family in ("dflash", "dspark")


def _shift(record: HeadRecord) -> str:
    if _is_block(record):
        return _TOKEN_SHIFT["dflash"]
    if record.config.family == "falcon":
        return _TOKEN_SHIFT["falcon"]
    return _TOKEN_SHIFT["eagle" if record.config.layer else "steps"]
