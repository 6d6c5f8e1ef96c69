"""Texts to replay: logged answers that are the target's own, or fresh ones where a log has none."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.engine.llm import LLM
from paceline.engine.score import score
from paceline.engine.text.own_text import is_drawn, is_greedy
from paceline.errors import InvalidParameter
from paceline.evaluation.advise.replay import Text
from paceline.evaluation.prompts import Prompt, ids_of
from paceline.types import NamedProgress, SamplingParams, silent

_BATCH = 8


def texts_of(
    llm: LLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    raw: bool = False,
    progress: NamedProgress = silent,
) -> tuple[list[Text], int]:
    """(texts with more than one output token, number of logged answers that are not the target's).

    Args:
        prompts: those without a logged answer of the target are answered by plain decoding.
        params: of the answers; logged answers are cut to `max_tokens`.
        progress: called with (what, prompts done, number of prompts).
    """
    texts: list[Text | None] = []
    waiting: list[int] = []
    num_foreign = 0
    asked = ids_of(llm, (prompt.text for prompt in prompts), raw)
    for number, (prompt, ids) in enumerate(zip(prompts, asked, strict=True)):
        progress("reading the log", number, len(prompts))
        said = () if prompt.answer is None else tuple(llm.tokenizer.encode(prompt.answer, add_special_tokens=False))
        text = Text(tuple(ids), said[: params.max_tokens], len(said) >= params.max_tokens, prompt.family)
        is_own = bool(said) and is_on_policy(llm, text, params)
        num_foreign += bool(said) and not is_own
        texts.append(text)
        if not is_own:
            waiting.append(number)
    progress("reading the log", len(prompts), len(prompts))
    for start in range(0, len(waiting), _BATCH):
        progress("answering", start, len(waiting))
        some = waiting[start : start + _BATCH]
        seeds = [None if params.is_greedy else number for number in some]
        settings = [replace(params, seed=seed) for seed in seeds]
        outputs = llm.generate([list(_known(texts, number).prompt) for number in some], settings)
        for number, seed, output in zip(some, seeds, outputs, strict=True):
            is_cut = output.finish_reason == "length"
            texts[number] = Text(output.prompt_token_ids, output.token_ids, is_cut, prompts[number].family, seed)
    progress("answering", len(waiting), len(waiting))
    return [text for text in texts if text is not None and text.num_decoded], num_foreign


def check_texts(texts: Sequence[Text]) -> None:
    """Raise InvalidParameter if there are no texts."""
    if not texts:
        problem = "no answer has a second token, and the first one comes with the prompt"
        raise InvalidParameter("traffic", problem, "give prompts with longer answers")


def is_on_policy(llm: LLM, text: Text, params: SamplingParams) -> bool:
    """Whether this model could have given a logged answer: greedily, or as a sample of its law."""
    scores = score(llm.loaded.model, [*text.prompt, *text.output], len(text.prompt), params)
    if params.is_greedy:
        return is_greedy(scores.ranks == 0)
    return is_drawn(scores.logprobs, scores.entropies)


def _known(texts: Sequence[Text | None], number: int) -> Text:
    text = texts[number]
    assert text is not None
    return text
