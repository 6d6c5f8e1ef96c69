"""Names and shapes of every tensor of a head, by family; files, executors and training use this list.

Linear layers are [out, in]. h is the head's width, t the target's, T the number of taps, V the target's vocabulary, Vd
the head's own. Not for computing with them (`nets.py`).
"""

from collections.abc import Callable, Iterator

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.heads.record import HeadConfig

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor of a head with this config.

    Raises:
        InvalidParameter: the config lacks something that its family needs.
    """
    return dict(_FAMILIES[config.family](config))


def layer_of(config: HeadConfig) -> ModelConfig:
    """Sizes of the decoder layers. Raises InvalidParameter for a head that has none."""
    if config.layer is None:
        raise InvalidParameter("layer", f"is missing from a {config.family} head", "give the sizes of its layers")
    return config.layer


def _linear(name: str, rows: int, columns: int, bias: bool = False) -> Shapes:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _decoder_layer(config: HeadConfig, number: int, width: int, input_norm: bool = True) -> Shapes:
    """One decoder layer whose query, key and value projections have input width `width`."""
    layer, name = layer_of(config), f"layers.{number}."
    hidden, inner = layer.hidden_size, layer.intermediate_size
    query, key = layer.num_attention_heads * layer.head_dim, layer.num_key_value_heads * layer.head_dim
    if input_norm:
        yield name + "input_layernorm.weight", (hidden,)
    for part, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
        yield from _linear(f"{name}self_attn.{part}", rows, width, layer.attention_bias)
    if layer.qk_norm:
        yield name + "self_attn.q_norm.weight", (layer.head_dim,)
        yield name + "self_attn.k_norm.weight", (layer.head_dim,)
    yield from _linear(f"{name}self_attn.o_proj", hidden, query, layer.attention_out_bias)
    yield name + "post_attention_layernorm.weight", (hidden,)
    for part, rows, columns in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
        yield from _linear(f"{name}mlp.{part}", rows, columns, layer.mlp_bias)


def _own_tables(config: HeadConfig) -> Shapes:
    hidden = layer_of(config).hidden_size
    if config.owns_embedding:
        yield "embed_tokens.weight", (config.target.vocab_size, hidden)
    if config.owns_head:
        yield "lm_head.weight", (config.draft_vocab_size, hidden)


def _eagle(config: HeadConfig) -> Shapes:
    """EAGLE-1 and 2, HASS: the first layer has no norm before attention; final norm and head are the target's."""
    hidden = layer_of(config).hidden_size
    yield from _linear("fc", hidden, 2 * hidden, config.fc_bias)
    for number in range(config.num_layers):
        yield from _decoder_layer(config, number, hidden, input_norm=number > 0)
    yield from _own_tables(config)


def _eagle3(config: HeadConfig) -> Shapes:
    hidden, target, taps = layer_of(config).hidden_size, config.target.hidden_size, len(config.taps)
    if config.norm_before_fc:
        yield "input_norm.weight", (taps * target,)
    if config.fc_norm:
        for number in range(taps):
            yield f"fc_norm.{number}.weight", (target,)
    yield from _linear("fc", hidden, taps * target, config.fc_bias)
    for number in range(config.num_layers):
        if number == 0:
            yield "layers.0.hidden_norm.weight", (hidden,)
        yield from _decoder_layer(config, number, hidden if number else 2 * hidden)
    yield "norm.weight", (hidden,)
    yield from _own_tables(config)


def _p_eagle(config: HeadConfig) -> Shapes:
    yield from _eagle3(config)
    yield "mask_hidden", (len(config.taps) * config.target.hidden_size,)


def _dflash(config: HeadConfig) -> Shapes:
    hidden = layer_of(config).hidden_size
    yield from _linear("fc", hidden, len(config.taps) * config.target.hidden_size, config.fc_bias)
    yield "hidden_norm.weight", (hidden,)
    for number in range(config.num_layers):
        yield from _decoder_layer(config, number, hidden)
    yield "norm.weight", (hidden,)
    yield from _own_tables(config)


def _dspark(config: HeadConfig) -> Shapes:
    hidden, rank = layer_of(config).hidden_size, config.markov_rank
    yield from _dflash(config)
    if rank:
        yield "markov_head.markov_w1.weight", (config.target.vocab_size, rank)
        yield "markov_head.markov_w2.weight", (config.draft_vocab_size, rank)
        if config.variant == "gated":
            yield from _linear("markov_head.gate_proj", rank, hidden + rank, bias=True)
        if config.variant == "rnn":
            yield from _linear("markov_head.joint_proj", 3 * rank, 2 * rank + hidden, bias=True)
    if config.confidence:
        width = hidden + (rank if config.confidence_markov else 0)
        yield from _linear("confidence_head.proj", 1, width, bias=True)


def _mtp(config: HeadConfig) -> Shapes:
    """MTP: `fc` reads the concatenation of normed embedding and normed hidden state."""
    hidden, target = layer_of(config).hidden_size, config.target.hidden_size
    yield "embed_norm.weight", (hidden,)
    yield "hidden_norm.weight", (target,)
    yield from _linear("fc", hidden, hidden + target, config.fc_bias)
    yield from _decoder_layer(config, 0, hidden)
    yield "norm.weight", (hidden,)
    yield from _own_tables(config)


def _medusa(config: HeadConfig) -> Shapes:
    width = config.target.hidden_size
    for step in range(config.num_steps):
        for block in range(config.block_depth):
            yield from _linear(f"blocks.{step}.layers.{block}", width, width, config.fc_bias)
        if config.owns_head:
            yield f"lm_heads.{step}.weight", (config.draft_vocab_size, width)


def _mlp_speculator(config: HeadConfig) -> Shapes:
    """If tied, all steps share one embedding, head and norm, and all but the first step share one projection.

    If the state's width differs from the target's, `embed_proj` and `head_proj` adapt the target's shared tables.
    """
    inner, target, vocabulary = config.inner_size, config.target.hidden_size, config.target.vocab_size
    for step in range(1 if config.tied else config.num_steps):
        if config.owns_embedding:
            yield f"emb.{step}.weight", (vocabulary, inner)
        if config.owns_head:
            yield f"head.{step}.weight", (config.draft_vocab_size, inner)
        yield f"ln.{step}.weight", (inner,)
        yield f"ln.{step}.bias", (inner,)
    for step in range(min(config.num_steps, 2) if config.tied else config.num_steps):
        yield f"proj.{step}.weight", (inner, inner if step else target)
    if inner != target:
        if not config.owns_embedding:
            yield "embed_proj.weight", (inner, target)
        if not config.owns_head:
            yield "head_proj.weight", (target, inner)


def _lstm_speculator(config: HeadConfig) -> Shapes:
    """Arctic's LSTM: projections of the four gates are concatenated in the order forget, input, output, cell.

    If tied, all gates share one embedding table.
    """
    inner, target, vocabulary = config.inner_size, config.target.hidden_size, config.target.vocab_size
    for gate in ("forget",) if config.tied else ("forget", "input", "output", "cell"):
        yield f"{gate}_emb.weight", (vocabulary, inner)
    for step in range(2):
        yield f"projs.{step}.weight", (4 * inner, inner if step else target)
    for norm in ("cell_ln", "state_ln"):
        yield f"{norm}.weight", (inner,)
        yield f"{norm}.bias", (inner,)
    yield "head.weight", (config.draft_vocab_size, inner)


def _hydra(config: HeadConfig) -> Shapes:
    """Head k reads the hidden state and k + 1 embeddings; its first layer projects them to the state's width."""
    width = config.target.hidden_size
    for step in range(config.num_steps):
        for layer in range(config.block_depth):
            columns = width if layer else (step + 2) * width
            yield from _linear(f"blocks.{step}.{layer}.linear", width, columns, bias=True)
            if layer == 0:
                yield from _linear(f"blocks.{step}.0.residual", width, columns, bias=True)
        yield from _linear(f"lm_heads.{step}", config.draft_vocab_size, width, bias=True)
    if config.variant == "prefix-mlp":
        for name, shape in _decoder_layer(config, 0, width):
            yield f"prefix.{name}", shape
        yield "prefix.norm.weight", (width,)


def _blockwise(config: HeadConfig) -> Shapes:
    """Stern et al. 2018, section 6: a residual feed-forward per step before the target's own output head."""
    width, inner = config.target.hidden_size, config.inner_size
    for step in range(config.num_steps):
        yield from _linear(f"blocks.{step}.up", inner, width, bias=True)
        yield from _linear(f"blocks.{step}.down", width, inner, bias=True)


def _falcon(config: HeadConfig) -> Shapes:
    """Gao et al. 2024: two LSTM layers with torch's names, then a layer without a norm before attention."""
    hidden = layer_of(config).hidden_size
    for number, width in enumerate((2 * hidden, hidden)):
        yield f"lstm.weight_ih_l{number}", (4 * hidden, width)
        yield f"lstm.weight_hh_l{number}", (4 * hidden, hidden)
        yield f"lstm.bias_ih_l{number}", (4 * hidden,)
        yield f"lstm.bias_hh_l{number}", (4 * hidden,)
    yield from _decoder_layer(config, 0, hidden, input_norm=False)
    yield from _own_tables(config)


_FAMILIES: dict[str, Callable[[HeadConfig], Shapes]] = {
    "eagle": _eagle, "eagle3": _eagle3, "p_eagle": _p_eagle, "dflash": _dflash, "dspark": _dspark, "mtp": _mtp,
    "medusa": _medusa, "mlp_speculator": _mlp_speculator, "lstm_speculator": _lstm_speculator, "hydra": _hydra,
    "blockwise": _blockwise, "falcon": _falcon,
}  # fmt: skip
