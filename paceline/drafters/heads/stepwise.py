"""`StepRunner`: heads without attention: a small network per level on the target's last hidden state.

Medusa (Cai et al. 2024) and blockwise heads (Stern et al. 2018) read that state only; Hydra (Ankner et al. 2024) and
MLP speculators (Wertheimer et al. 2024) also read the drafted tokens. There is no KV cache and no prefill. Not for
trees or arithmetic.
"""

from collections.abc import Sequence

import numpy as np

from paceline.drafters.heads.hidden_states import HiddenStates
from paceline.drafters.trees.growth import Growth
from paceline.models.chains import ChainDraft, Draws
from paceline.models.heads.nets import DraftsAtOnce, StepNet
from paceline.models.states import States, concatenate
from paceline.sampling.randomness import ROOT
from paceline.speculation.outcome import RequestOutcome


class StepRunner:
    """Scores growing trees with `net`.

    Args:
        states: the target's hidden states.
    """

    def __init__(self, net: StepNet, states: HiddenStates) -> None:
        self._net, self.states = net, states
        self.at_once = net if isinstance(net, DraftsAtOnce) else None
        self._below: dict[str, dict[int, tuple[int, States]]] = {}

    @property
    def can_draw(self) -> bool:
        """See `ChainRunner`."""
        return self.at_once is not None and self.at_once.draws_chains

    def can_hold(self, growth: Growth) -> bool:
        """Whether the target's last hidden state is stored; after a change of drafter it comes with the next step."""
        context = growth.context
        return self.states.last(context.request_id, len(context.token_ids) - 2) is not None

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """All of them."""
        for growth in growths:
            context = growth.context
            state = self.states.last(context.request_id, len(context.token_ids) - 2)
            assert state is not None, "can_hold said so"
            self._below[context.request_id] = {ROOT: (0, self._net.begin(state).copy())}
        return growths

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """For each admitted growth the logits [len(nodes), draft vocab] after its `nodes`, all of one level."""
        asked = [(growth, node) for growth, nodes in work for node in nodes]
        places = [self._place(growth, node) for growth, node in asked]
        tokens = [growth.context.token_ids[-1] if node == ROOT else growth.tokens[node] for growth, node in asked]
        level = places[0][0]
        above = concatenate([state for _, state in places])
        logits, states = self._net.step(level, above, np.asarray(tokens, np.int32))
        states = states.copy()
        for row, (growth, node) in enumerate(asked):
            self._below[growth.context.request_id][node] = (level + 1, states[row : row + 1])
        return np.split(logits.copy(), np.cumsum([len(nodes) for _, nodes in work])[:-1])

    def draft_chains(self, growths: Sequence[Growth], num_tokens: int, draws: Draws | None = None) -> ChainDraft:
        """See `ChainRunner`; only where the net drafts `at_once`."""
        assert self.at_once is not None
        states = concatenate([self._below[growth.context.request_id][ROOT][1] for growth in growths])
        last = np.array([growth.context.token_ids[-1] for growth in growths], np.int32)
        drawn = () if draws is None else (draws,)
        return self.at_once.draft_chains(states, last, num_tokens, *drawn)

    def observe(self, outcome: RequestOutcome) -> None:
        """Release a finished request."""
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self._below.pop(request_id, None)

    def _place(self, growth: Growth, node: int) -> tuple[int, States]:
        """(level, state [1, n]) that the children of `node` are drafted from."""
        below = self._below[growth.context.request_id]
        return below[ROOT] if node == ROOT else below[growth.parents[node]]
