"""Falcon (Gao et al. 2024, arXiv 2412.12639): a half-autoregressive head, k tokens in one pass.

    x_p = the upper state of two LSTM layers over [hidden state at p, embedding of the token at p + 1]
    y = r + attention(x);  y = y + mlp(post_attention_layernorm(y))      (r = x; the layer has no norm before attention)
    y_p is the target's hidden state at p + k, so logits = head(y_p) are of the token at p + k + 1

Attention is causal between blocks of k rows and full inside a block (the paper's relaxed causal mask): row i attends to
row j where j // k <= i // k. The last k rows of a text are a block, whose outputs predict the next k tokens; those
tokens, with the outputs as their hidden states, are the next block. The LSTM runs through the whole text, in training
as in serving, and its state is kept per row, so that it can continue from any row. (The published code does not run: it
uses the pair that torch's LSTM returns as if it were the output.)
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import DecoderLayer, SharesTables

LSTM_LAYERS = 2


class LstmState(NamedTuple):
    """Outputs and cells of all LSTM layers, [layers, n, hidden] each."""

    outputs: Tensor
    cells: Tensor

    def at(self, rows: Tensor) -> "LstmState":
        """The states of `rows`."""
        return LstmState(self.outputs[:, rows], self.cells[:, rows])


class Falcon(SharesTables):
    """The network; arguments as `SharesTables`."""

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__(config, embedding, head)
        layer = config.layer
        assert layer is not None
        self.lstm = nn.LSTM(2 * layer.hidden_size, layer.hidden_size, LSTM_LAYERS)
        self.layers = nn.ModuleList([DecoderLayer(layer, input_norm=False)])

    @property
    def layer(self) -> DecoderLayer:
        """The one layer."""
        found = self.layers[0]
        assert isinstance(found, DecoderLayer)
        return found

    def project(self, taps: Tensor) -> Tensor:
        """[n, hidden] the one hidden state it reads, as it is."""
        return taps[:, 0].float()

    def enter(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Input of the LSTM [n, 2 hidden], from `tokens` [n] and input states `hidden` [n, hidden]."""
        return torch.cat([hidden.float(), self.embed(tokens)], dim=-1)

    def start(self, num: int) -> LstmState:
        """The initial state of `num` texts."""
        zeros = torch.zeros(LSTM_LAYERS, num, self.lstm.hidden_size, device=self._weight("hh", 0).device)
        return LstmState(zeros, zeros)

    def step(self, entered: Tensor, before: LstmState) -> LstmState:
        """States after one row of each of n texts, from its input `entered` [n, 2 hidden] and the previous states."""
        outputs, cells, x = [], [], entered
        for number in range(LSTM_LAYERS):
            gates = self._gates_of_inputs(number, x) + before.outputs[number] @ self._weight("hh", number).T
            output, cell = _cell(gates, before.cells[number])
            outputs.append(output)
            cells.append(cell)
            x = output
        return LstmState(torch.stack(outputs), torch.stack(cells))

    def read_whole(self, entered: Tensor, lengths: Sequence[int]) -> Tensor:
        """Upper-layer outputs [N, hidden] float32 of all rows of whole texts with the concatenated inputs `entered`.

        These are the outputs of `run` by torch's LSTM, which does not return the cells of all rows, but has a backward
        pass over all rows at once (1.4 s of a core for 2,200 rows of 576, against 6.6 s). Texts are padded.
        """
        padded, _ = self.lstm(pad_sequence(list(entered.float().split(list(lengths)))))
        return torch.cat([padded[:length, i] for i, length in enumerate(lengths)])

    def run(self, entered: Tensor, lengths: Sequence[int]) -> LstmState:
        """The states of all rows of whole texts, from their concatenated inputs `entered` [N, 2 hidden]."""
        outputs, cells, x = [], [], entered
        for number in range(LSTM_LAYERS):
            output, cell = self._run_layer(number, x, lengths)
            outputs.append(output)
            cells.append(cell)
            x = output
        return LstmState(torch.stack(outputs), torch.stack(cells))

    def _run_layer(self, number: int, x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Outputs and cells [N, hidden] of one layer: all input products at once, then a row of each text at a time.

        Texts are sorted by length, longest first, so that the texts with rows left are always the first ones.
        """
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        starts = torch.tensor([sum(lengths[:i]) for i in order], device=x.device)
        gates, recurrent = self._gates_of_inputs(number, x), self._weight("hh", number).T
        output = cell = x.new_zeros(len(order), self.lstm.hidden_size, dtype=torch.float32)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for place in range(max(lengths)):
            running = sum(lengths[i] > place for i in order)
            rows = starts[:running] + place
            output, cell = _cell(gates[rows] + output[:running] @ recurrent, cell[:running])
            found.append((rows, output, cell))
        back = torch.argsort(torch.cat([rows for rows, _, _ in found]))
        return torch.cat([one for _, one, _ in found])[back], torch.cat([one for _, _, one in found])[back]

    def _gates_of_inputs(self, number: int, x: Tensor) -> Tensor:
        bias = getattr(self.lstm, f"bias_ih_l{number}") + getattr(self.lstm, f"bias_hh_l{number}")
        return x @ self._weight("ih", number).T + bias

    def _weight(self, kind: str, number: int) -> Tensor:
        return getattr(self.lstm, f"weight_{kind}_l{number}")


def _cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Output and cell from gates [n, 4 hidden] in torch's order: input, forget, candidate, output."""
    entering, kept, candidate, leaving = gates.float().chunk(4, dim=-1)
    cell = torch.sigmoid(kept) * cell + torch.sigmoid(entering) * torch.tanh(candidate)
    return torch.sigmoid(leaving) * torch.tanh(cell), cell
