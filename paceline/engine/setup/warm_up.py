"""`warm_up`: what passes need is compiled and recorded before the first request, so that no user waits for it.

Only on devices that record passes (CUDA graphs), for decoding, verification and prompts. Longer contexts, and drafts of
heads and draft models, are recorded at their first use. Not for timing passes (`quick_profile.py`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from paceline.engine.loop.engine import Engine
from paceline.engine.loop.target_pass import plain_pass
from paceline.models.base import CausalLM, RecordsPasses, pages_for
from paceline.models.rows import Part, build_rows
from paceline.models.state_book import HoldsStates
from paceline.sampling.answered import Question
from paceline.types import NamedProgress

CONTEXTS = (0, 256, 512, 1024)
"""Tokens before the rows of a pass. Attention over longer ones is split into more parts, whose number is recorded."""
_DRAWN, _CUT = Question(1.0, 0.0, 0, 1.0, None, 0), Question(1.0, 0.0, 50, 0.9, None, 0)
_WHAT = "recording passes"


def warm_up(model: CausalLM, engine: Engine, progress: NamedProgress) -> None:
    """Run passes of an engine without requests, over its cache, where its `model` records them."""
    if not (isinstance(model, RecordsPasses) and model.records_passes) or isinstance(engine.cache, HoldsStates):
        return  # states are those of texts, which these passes have not
    most_rows = engine.scheduler.config.max_num_seqs * (1 + engine.speculation.num_draft_tokens)
    passes = list(_passes(model.recorded_sizes, most_rows, model.config.max_position_embeddings))
    taps = engine.drafter.traits.taps
    for number, part in enumerate(passes):
        progress(_WHAT, number, len(passes))
        plain_pass(model, build_rows([part]), engine.cache, taps)
    for question in (_DRAWN, _CUT):  # compiles draws, of one row and of as many as decode at once
        for part in (passes[0], max(passes, key=_num_asked)):
            plain_pass(model, build_rows([part]), engine.cache, taps, question)
    progress(_WHAT, len(passes), len(passes))


def _num_asked(part: Part) -> int:
    return len(part.tokens) if part.logits == "all" else 1


def _passes(sizes: Sequence[int], most_rows: int, longest: int) -> Iterator[Part]:
    """Passes that need the logits of all rows (decoding, verification), and passes that need the last row's (prompts).

    All keys are in the first page, which a table may name many times: nobody reads them.
    """
    decodes = sizes[: bisect_left(sizes, most_rows) + 1]
    shapes = [(context, size, True) for context in CONTEXTS for size in decodes] + [(0, size, False) for size in sizes]
    for context, size, asks_all in shapes:
        if context + size <= longest:
            yield Part([0] * pages_for(context + size), context, [0] * size, logits="all" if asks_all else "last")
