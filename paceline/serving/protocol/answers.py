"""`Answer`: builds the response bodies of one request in OpenAI's format. For request bodies see `openai.py`."""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import Any

from paceline.models.text.call_formats import CALL_FORMATS
from paceline.serving.models.job import Chunk, Piece, Summary
from paceline.serving.protocol.logprobs import (
    TextOffsets,
    alternatives,
    chat_logprobs,
    mean_logprob,
    spelled,
    text_logprobs,
)
from paceline.serving.protocol.statistics import draft_statistics, told_step, vllm_statistics
from paceline.serving.protocol.thoughts import ThoughtReader
from paceline.serving.protocol.tools import CallReader, ToolChoice


@dataclass(frozen=True, slots=True)
class Wish:
    """What a response should contain besides its text.

    Attributes:
        is_chat: chat completions, else text completions.
        logprobs: include log-probabilities of output tokens.
        echo: completions begin with their prompt; `prompts` holds these as texts, where known.
        only_echo: completions consist of the prompt only.
        token_ids, prompt_logprobs, trace, stats: see `openai.py`.
        num_samples: samples of each prompt.
        num_kept: number of samples to return, the most probable ones (OpenAI's ``best_of``).
        tools: the available tools; None without any.
    """

    is_chat: bool = False
    logprobs: bool = False
    echo: bool = False
    only_echo: bool = False
    token_ids: bool = False
    prompt_logprobs: bool = False
    trace: bool = False
    stats: bool = False
    num_samples: int = 1
    num_kept: int | None = None
    prompts: Sequence[Any] = ()
    tools: ToolChoice | None = None


@dataclass(slots=True)
class _Choice:
    """One choice under construction."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    last: Chunk | None = None


class Answer:
    """Builds the response bodies of one request.

    Args:
        request_id: as shown to the client.
        model: the name that the client used.
        wish: what to include.
    """

    def __init__(self, request_id: str, model: str, wish: Wish) -> None:
        self._head = {"id": request_id, "created": int(time.time()), "model": model}
        self._wish = wish
        self._begun: set[int] = set()
        self._counts: dict[int, tuple[int, int]] = {}
        self._summaries: dict[int, Summary] = {}
        self._prompts: dict[int, tuple[Piece, ...]] = {}
        self._readers: dict[int, CallReader] = {}
        self._thinkers: dict[int, ThoughtReader] = {}
        self._offsets: dict[int, TextOffsets] = {}
        self._around: dict[int, tuple[str, str]] = {}
        self._is_plain = not (wish.logprobs or wish.token_ids or wish.trace or wish.tools is not None)
        self._num_thought = 0

    @property
    def errors(self) -> list[str]:
        """Error messages of failed samples."""
        return [summary.error for summary in self._summaries.values() if summary.error is not None]

    @property
    def is_over(self) -> bool:
        """Whether all samples of all prompts have ended."""
        return len(self._summaries) == self._wish.num_samples * len(self._wish.prompts)

    def whole(self, chunks: Iterable[tuple[int, Chunk]]) -> dict[str, Any]:
        """The body of a response that is not streamed, from (index of the prompt, chunk) in any order."""
        gathered: dict[int, _Choice] = {}
        for place, chunk in chunks:
            number = self._note(place, chunk)
            choice = gathered.setdefault(number, _Choice())
            thoughts, text = self._split(number, chunk)
            choice.thoughts.append(thoughts)
            choice.texts.append(text)
            choice.pieces += chunk.pieces
            choice.last = chunk if chunk.finish_reason is not None or choice.last is None else choice.last
        chosen = self._chosen(gathered)
        choices = [self._whole_choice(number, gathered[number]) | {"index": i} for i, number in enumerate(chosen)]
        kind = "chat.completion" if self._wish.is_chat else "text_completion"
        body = self._head | {"object": kind, "choices": choices, "usage": self.usage()}
        return body | self._statistics()

    def pieces(self, place: int, chunk: Chunk, usage: tuple[bool, bool] = (False, False)) -> list[dict[str, Any]]:
        """The bodies of the events that tell of a chunk.

        One as a rule; several for calls of tools, and none where a chunk only adds to a call that cannot be told yet.

        Args:
            place: the index of the prompt.
            usage: whether counts come at the end of the stream, so that these bodies have none (null), and whether
                they come with every body.
        """
        at_end, always = usage
        number = self._note(place, chunk)
        if not self._wish.is_chat:
            contents: list[dict[str, Any]] = [{"text": chunk.text}]
        else:
            contents = [{"delta": delta} for delta in self._deltas(number, chunk)]
        if contents == [{"delta": {}}] and not (always or chunk.pieces or chunk.step or chunk.finish_reason):
            return []
        if self._wish.is_chat and number not in self._begun:
            contents[0] = {"delta": {"role": "assistant", "content": None} | contents[0]["delta"]}
        self._begun.add(number)
        parts = [replace(chunk, finish_reason=None)] * (len(contents) - 1) + [chunk]
        choices = [self._choice(number, content, part, () if told else chunk.pieces)
                   for told, (content, part) in enumerate(zip(contents, parts, strict=True))]  # fmt: skip
        more = {"usage": self.usage() if always else None} if always or at_end else {}
        return [self._head | {"object": self._chunk_kind, "choices": [choice]} | more for choice in choices]

    def quick(self, place: int, chunk: Chunk, usage_at_end: bool = False) -> str | None:
        """`pieces` as JSON, built faster, for a chunk that only adds text to a choice that has begun; else None."""
        wish = self._wish
        number = place * wish.num_samples + chunk.index
        if not self._is_plain or number not in self._begun or chunk.finish_reason is not None or chunk.pieces:
            return None
        if chunk.thinking != "none":
            return None
        if number not in self._around:
            mark = uuid.uuid4().hex
            [told] = self.pieces(place, replace(chunk, text=mark), (usage_at_end, False))
            body = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
            before, _, after = body.partition(f'"{mark}"')
            self._around[number] = before, after
        else:
            prompt, output = self._counts[number]
            self._counts[number] = prompt, output + chunk.num_tokens
        before, after = self._around[number]
        return f"{before}{encode_basestring(chunk.text)}{after}"

    def closing(self, with_usage: bool) -> dict[str, Any] | None:
        """The body of the final event, after the last choice; None when there is none."""
        more = self._statistics()
        if not with_usage and not more:
            return None
        usage = {"usage": self.usage()} if with_usage else {}
        return self._head | {"object": self._chunk_kind, "choices": []} | usage | more

    def usage(self) -> dict[str, Any]:
        """Token counts so far; every prompt counts once, whatever the number of samples."""
        prompts: dict[int, int] = {}
        for number, (prompt, _) in self._counts.items():
            place = number // self._wish.num_samples
            prompts[place] = max(prompt, prompts.get(place, 0))
        prompt, output = sum(prompts.values()), sum(output for _, output in self._counts.values())
        summaries = self._summaries.values()
        accepted = sum(each.num_accepted_predictions for each in summaries)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(each.num_cached_tokens for each in summaries)},
            "completion_tokens_details": {
                "reasoning_tokens": self._num_thought,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": sum(each.num_predicted_tokens for each in summaries) - accepted,
            },
        }

    def noted(self) -> dict[str, Any]:
        """Fields for the request log of a finished response: counts only, no text."""
        stats = next((each.stats for each in self._summaries.values() if each.stats is not None), None)
        drafts = {} if stats is None or not stats.num_drafts else {
            "acceptance_rate": stats.acceptance_rate, "acceptance_length": stats.acceptance_length,
        }  # fmt: skip
        lossy = {"lossy": True} if any(each.lossy for each in self._summaries.values()) else {}
        return {"usage": self.usage()} | drafts | lossy

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._wish.is_chat else "text_completion"

    def _note(self, place: int, chunk: Chunk) -> int:
        """Count a chunk; returns the index of its choice."""
        number = place * self._wish.num_samples + chunk.index
        prompt, output = self._counts.get(number, (0, 0))
        prompt = max(prompt, chunk.num_prompt_tokens)
        if chunk.finish_reason is not None:
            self._counts[number] = prompt, 0 if self._wish.only_echo else chunk.num_output_tokens
            self._summaries[number] = chunk.summary
            if chunk.summary.prompt:
                self._prompts[place] = chunk.summary.prompt
        else:
            self._counts[number] = prompt, output + chunk.num_tokens
        return number

    def _split(self, number: int, chunk: Chunk) -> tuple[str, str]:
        """(reasoning text, answer text) of a chunk."""
        if chunk.thinking == "none" or not self._wish.is_chat:
            return "", chunk.text
        if number not in self._thinkers:
            self._thinkers[number] = ThoughtReader(
                chunk.thinking == "open", chunk.thinking == "several", chunk.thought_tags
            )
        reader, told = self._thinkers[number], list[tuple[str, str]]()
        for text in chunk.texts:
            told.append(reader.push(text))
            self._num_thought += reader.is_thinking
        rest = chunk.text[sum(map(len, chunk.texts)) :]
        told.append(reader.push(rest, ended=chunk.finish_reason is not None))
        thoughts, answers = zip(*told, strict=True)
        return "".join(thoughts), "".join(answers)

    def _chosen(self, gathered: Mapping[int, _Choice]) -> list[int]:
        """Indices of the choices to return; best first where more were drawn than are returned."""
        kept, drawn = self._wish.num_kept, self._wish.num_samples
        if kept is None:
            return sorted(gathered)
        places = sorted({number // drawn for number in gathered})
        ranked = (sorted((n for n in gathered if n // drawn == place), key=lambda n: -mean_logprob(gathered[n].pieces))
                  for place in places)  # fmt: skip
        return [number for numbers in ranked for number in numbers[:kept]]

    def _whole_choice(self, number: int, choice: _Choice) -> dict[str, Any]:
        assert choice.last is not None
        text, pieces = "".join(choice.texts), list(choice.pieces)
        if self._wish.only_echo:
            text, pieces = "", []
        if self._wish.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None} | self._calls(number, text, choice.last)
            if number in self._thinkers:
                message["reasoning_content"] = "".join(choice.thoughts) or None
            content: dict[str, Any] = {"message": message}
            return self._choice(number, content, choice.last, pieces)
        prompt = list(self._prompt_of(number)) if self._wish.echo else []
        return self._choice(number, {"text": self._echoed(number) + text}, choice.last, prompt + pieces)

    def _calls(self, number: int, text: str, last: Chunk) -> dict[str, Any]:
        """Content and tool calls of a complete answer, where tools were given."""
        if self._wish.tools is None:
            return {}
        reader = self._readers[number] = self._wish.tools.reader(CALL_FORMATS[last.call_format])
        shown, _ = reader.push(text, ended=True)
        return {"content": shown.strip() or None, "tool_calls": reader.calls} if reader.calls else {}

    def _deltas(self, number: int, chunk: Chunk) -> list[dict[str, Any]]:
        """What a chunk adds to a streamed message; without anything to add, one that is empty.

        Every piece of a call is one of its own, and so is the end after it.
        """
        thoughts, text = self._split(number, chunk)
        reasoning = {"reasoning_content": thoughts} if thoughts else {}
        if self._wish.tools is None:
            return [{"content": text} | reasoning]
        if number not in self._readers:
            self._readers[number] = self._wish.tools.reader(CALL_FORMATS[chunk.call_format])
        shown, calls = self._readers[number].push(text, ended=chunk.finish_reason is not None)
        said = ({"content": shown} if shown else {}) | reasoning
        told = [said] if said else []
        told += [{"tool_calls": [call]} for call in calls]
        return [*told, {}] if not told or (calls and chunk.finish_reason is not None) else told

    def _reason(self, number: int, chunk: Chunk) -> str | None:
        """The finish reason of a choice; ``tool_calls`` where it ended with tool calls that are whole."""
        reader = self._readers.get(number)
        called = reader is not None and bool(reader.calls) and not reader.is_cut
        return "tool_calls" if called and chunk.finish_reason == "stop" else chunk.finish_reason

    def _echoed(self, number: int) -> str:
        """The prompt of a choice as text, where `echo` is set."""
        if not self._wish.echo:
            return ""
        given = self._wish.prompts[number // self._wish.num_samples]
        return given if isinstance(given, str) else spelled(b"".join(p.spelling for p in self._prompt_of(number)))

    def _prompt_of(self, number: int) -> tuple[Piece, ...]:
        return self._prompts.get(number // self._wish.num_samples, ())

    def _choice(self, number: int, content: dict[str, Any], chunk: Chunk, pieces: Sequence[Piece]) -> dict[str, Any]:
        wish = self._wish
        choice = {"index": number, **content, "logprobs": None, "finish_reason": self._reason(number, chunk)}
        if wish.logprobs:
            choice["logprobs"] = chat_logprobs(pieces) if wish.is_chat else self._text_logprobs(number, pieces)
        if wish.token_ids:
            choice["token_ids"] = [piece.token_id for piece in pieces if piece.provenance != "prompt"]
        if chunk.finish_reason is None:
            return choice | self._trace(pieces, chunk)
        if chunk.summary.stop_reason is not None:
            choice["stop_reason"] = chunk.summary.stop_reason
        prompt = self._prompt_of(number)  # in a stream it comes with the last sample of its prompt
        if wish.token_ids and prompt:
            choice["prompt_token_ids"] = [piece.token_id for piece in prompt]
        if wish.prompt_logprobs and prompt:
            choice["prompt_logprobs"] = [alternatives(piece) for piece in prompt]
        if chunk.summary.error is not None:
            choice["error"] = {"message": chunk.summary.error, "type": "request_failed"}
        return choice | self._trace(pieces, chunk)

    def _text_logprobs(self, number: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Log-probabilities of a choice's next tokens, in completions format."""
        return text_logprobs(pieces, self._offsets.setdefault(number, TextOffsets()))

    def _trace(self, pieces: Sequence[Piece], chunk: Chunk) -> dict[str, Any]:
        if not self._wish.trace:
            return {}
        tokens = [{"id": p.token_id, "text": p.text, "provenance": p.provenance} for p in pieces]
        step = {} if chunk.step is None else {"step": told_step(chunk.step)}
        lossy = {} if chunk.finish_reason is None else {"lossy": chunk.summary.lossy}
        return {"paceline": {"tokens": tokens} | step | lossy}

    def _statistics(self) -> dict[str, Any]:
        """Draft statistics of each choice, where requested: with vLLM's names, and further ones."""
        ended = sorted(self._summaries.items())
        stats = {n: (each.stats, each.lossy) for n, each in ended if each.stats is not None}
        if not self._wish.stats or not stats:
            return {}
        first, _ = next(iter(stats.values()))
        own = {"choices": [{"index": n} | draft_statistics(*each) for n, each in stats.items()]}
        return {"metrics": {"speculative_decoding": vllm_statistics(first)}, "paceline": own}
