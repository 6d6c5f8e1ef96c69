"""DistillSpec (Zhou et al. 2024): distillation of a draft model from the target.

    min over q of E over texts (x, y) of 1 / |y| * sum over t of D(p(. | x, y<t), q(. | x, y<t))         (their eq. 3)

Answers are the target's own (off-policy), written by the draft (on-policy; no gradient flows through the choice of
tokens), or some of each (mixed). Divergences D are in `divergences.py`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.models.torch_executor.feedback import FeedbackNet
from paceline.training.drafts.divergences import criterion_of
from paceline.training.drafts.net import DraftNet
from paceline.training.drafts.texts import Teacher, Texts, continued, make_texts, stored_states
from paceline.training.heads.figures import Evaluation, figures
from paceline.training.heads.losses import OutputHead, Read, fused_loss, logits_of
from paceline.training.heads.shards import Document, TapStore
from paceline.training.run.trainee import Moment, Trainee

_MOST_MEASURED = 24
"""Most texts of an evaluation: every position costs a product with the whole vocabulary."""


class DistillRecipe(Trainee):
    """A draft model in training.

    Args:
        net: the draft model, with a feedback memory or without.
        target_head: [vocabulary, hidden] of the target, in the number format of the product.
        divergence: one of `DIVERGENCES`.
        on_policy: share of the texts that the draft writes itself, 0 to 1; above 0 `teacher` must be given.
        teacher: computes the target's states of new texts.
        ends: token ids that end a text.
        num_steps: tokens of a draft in evaluations.
        whole_texts: train on the positions of prompts too, which are ordinary text like the answers.
        left_out: by `Document.key`, [answer tokens] positions to leave out where the text is the target's own.
        origin: identifies the initial weights.

    Raises:
        InvalidParameter: an unknown divergence, a share out of range, no teacher, a `net` that cannot write text
            on-policy, or a vocabulary smaller than the target's.
    """

    def __init__(self, net: DraftNet | FeedbackNet, target_head: Tensor, divergence: str = "forward_kl",
                 on_policy: float = 0.0, teacher: Teacher | None = None, ends: Sequence[int] = (),
                 num_steps: int = 4, whole_texts: bool = False,
                 left_out: Mapping[tuple[int, int], Tensor] = MappingProxyType({}),
                 origin: str = "") -> None:  # fmt: skip
        check_on_policy(on_policy)
        if on_policy and teacher is None:
            raise InvalidParameter("teacher", "is needed for on-policy texts", "give the target's states")
        if on_policy and not isinstance(net, DraftNet):
            raise InvalidParameter("on_policy", "drafts with a memory do not write text", "give 0")
        if len(net.head) < len(target_head):
            problem = f"names {len(net.head)} tokens and the target {len(target_head)}"
            raise InvalidParameter("draft", problem, "choose a draft model of the same family")
        self.net, self.draft, self.num_steps = net, net, num_steps
        self._whole_texts, self._left_out, self._origin = whole_texts, left_out, origin
        self._criterion, self._on_policy, self._teacher, self._ends = criterion_of(divergence), on_policy, teacher, ends
        self._target_head, self._head = OutputHead(target_head), net.head[: len(target_head)]

    def loss(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Tensor:
        """See `Trainee.loss`; every document has the same weight."""
        texts = self._texts(store, documents, moment)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._head.dtype == torch.bfloat16):
            hidden = self.net(texts.tokens, texts.lengths)
        rows = texts.labelled
        read = Read(hidden[rows].float())
        parts = fused_loss(read, texts.normed[rows], self._head, texts.weights, self._criterion, self._target_head)
        return parts.loss

    def about(self) -> dict[str, int | float | str]:
        """See `Trainee.about`."""
        return {
            "begin_with": self._origin, "num_draft_tokens": self.num_steps, "raw": int(self._whole_texts),
            "pool": digest_of(self._left_out),
        }  # fmt: skip

    @torch.no_grad()
    def evaluate(self, store: TapStore, documents: Sequence[Document]) -> Evaluation:
        """See `Trainee.evaluate`; the draft reads the text's tokens, as it does while its own are accepted."""
        stood, total, places = [], 0.0, 0
        for one in documents[:_MOST_MEASURED]:
            ids, num_prompt = one.conversation.ids, one.conversation.num_prompt
            texts = make_texts([ids], [num_prompt], stored_states(store, [one]))
            logits = self._logits(texts)
            if one.conversation.temperature == 0:
                stood.append(runs_of(logits.argmax(-1) == texts.following[texts.labelled], self.num_steps))
            else:
                law = self._target_head.logits(texts.normed[texts.labelled]).softmax(-1)
                total += float(torch.minimum(law, logits.softmax(-1)).sum())
                places += len(logits)
        return figures(stood, [total / places] * self.num_steps if places else [], self.num_steps)

    @torch.no_grad()
    def hits(self, store: TapStore, document: Document) -> Tensor:
        """[answer tokens] whether the draft's most probable token is the text's."""
        ids, num_prompt = document.conversation.ids, document.conversation.num_prompt
        texts = make_texts([ids], [num_prompt], stored_states(store, [document]))
        return self._logits(texts).argmax(-1) == texts.following[texts.labelled]

    def _logits(self, texts: Texts) -> Tensor:
        """[labelled, vocabulary] logits of the draft."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._head.dtype == torch.bfloat16):
            hidden = self.net(texts.tokens, texts.lengths)
        return logits_of(Read(hidden[texts.labelled].float()), self._head)

    def _texts(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Texts:
        """The documents' texts; a share `on_policy` of the answers is written by the draft instead of the target."""
        own = torch.rand(len(documents), generator=moment.random) < self._on_policy
        ids = [one.conversation.ids for one in documents]
        normed = list(stored_states(store, documents).split([len(one) - 1 for one in ids]))
        chosen = own.nonzero()[:, 0].tolist()
        if chosen and self._teacher is not None and isinstance(self.draft, DraftNet):
            prompts = [ids[i][: documents[i].conversation.num_prompt] for i in chosen]
            sizes = [len(documents[i].conversation.answer) for i in chosen]
            written = continued(self.draft, prompts, sizes, self._ends, moment.random, len(self._head))
            states = self._teacher([one[:-1] for one in written]).split([len(one) - 1 for one in written])
            for i, text, found in zip(chosen, written, states, strict=True):
                ids[i], normed[i] = text, found
        num_prompts = [1 if self._whole_texts else one.conversation.num_prompt for one in documents]
        own_words = {documents[i].key for i in chosen}
        left_out = [None if one.key in own_words else self._left_out.get(one.key) for one in documents]
        return make_texts(ids, num_prompts, torch.cat(normed), moment.share, moment.random, left_out)


def check_on_policy(share: float) -> None:
    """Raises InvalidParameter for a share outside [0, 1]."""
    if not 0 <= share <= 1:
        raise InvalidParameter("on_policy", f"{share} is no share", "give a number from 0 to 1")


def runs_of(hits: Tensor, num_steps: int) -> Tensor:
    """[n, steps] from hits [n]: 1 where drafted token i + step is the text's, 0 where not, -1 after the end."""
    places = torch.arange(len(hits))[:, None] + torch.arange(num_steps)
    inside = places < len(hits)
    return torch.where(inside, hits[places.clamp(max=max(len(hits) - 1, 0))].float(), -1.0)


def digest_of(left_out: Mapping[tuple[int, int], Tensor]) -> str:
    """SHA-256 of the positions that are left out; empty where none are."""
    found = hashlib.sha256()
    for key in sorted(left_out):
        found.update(repr(key).encode() + left_out[key].numpy().tobytes())
    return found.hexdigest() if left_out else ""
