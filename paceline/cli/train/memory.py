"""`paceline train memory`: what the model tends to say, for the lookups of `suffix` and `hybrid`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.case import check_seed
from paceline.cli.options.prompts import prompt_ids, read_prompts
from paceline.cli.terminal.streams import messages, progress_bars, show_table, telling_end
from paceline.cli.terminal.streams import output as standard_output

if TYPE_CHECKING:
    from paceline.config import EngineConfig
    from paceline.drafters.lookup.memory import Memory
    from paceline.models.resolve import ModelSource
    from paceline.training.heads.conversations import Conversation
    from paceline.types import NamedProgress

_CONTEXT = 4
"""Number of last prompt tokens counted with each answer, so that its first tokens can be found too."""

_TOKENS = 300_000


def memory(
    answers: Annotated[
        list[Path] | None,
        typer.Option("--answers", help="Recorded answers (.npz, docs/memory.md) or a folder of them; may be repeated."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Prompts for the model to answer: one per line, or .jsonl.")
    ] = None,
    model: o.Model = o.DEFAULT_MODEL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where it goes; by default where `auto` finds it.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1, help="Answer tokens to write (300,000) or to take of --answers (all)."),
    ] = None,
    max_bytes: Annotated[int, typer.Option("--max-bytes", min=1, help="Largest size of what is kept.")] = 4_000_000,
    order: Annotated[int, typer.Option("--order", min=1, max=12, help="Longest sequence counted, in tokens.")] = 5,
    min_count: Annotated[int, typer.Option("--min-count", min=1, help="Least number of occurrences.")] = 2,
    benchmarks: Annotated[
        list[Path] | None,
        typer.Option("--keep-clean", help="Prompts (.jsonl) of which no 13 words in a row may be in an answer."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and drawn answers.")] = 0,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    as_json: o.Json = False,
) -> None:
    """Write a memory of the model's own answers, which lookups read besides the request.

    Without --answers the model writes them: to --prompts, or to prompts of its own making. That can be interrupted and
    goes on where it stopped. One answer in forty is not counted but replayed, to say what the memory is worth. Takes
    about 20 minutes for 300,000 tokens of the default model on two cores, less with --answers.

    Examples:

        paceline train memory -m target.gguf --tokens 300000

        paceline train memory -m target.gguf --prompts prompts.txt -o memory.safetensors

        paceline generate -m target.gguf -d suffix --draft-option memory=memory.safetensors --compare "Why is the sky \
blue?"
    """
    from paceline.config import EngineConfig
    from paceline.drafters.lookup.find import cached_path, hidden_by
    from paceline.drafters.lookup.memory import MemoryInfo, write_memory
    from paceline.models.resolve import resolve_model
    from paceline.training.conversation_files import read_all
    from paceline.training.memory import build_memory

    check_seed(seed)
    config = EngineConfig(dtype=dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    with progress_bars() as progress:
        if answers:
            source, found = resolve_model(model), read_all(answers)
        else:
            source, found = _written(model, config, prompts, tokens or _TOKENS, seed, progress)
        found = _clean(found, source, benchmarks or [])
        path = output or cached_path(source)
        counted = [answer for answer in found if not answer.is_held_out]
        counted = _some(counted, tokens, seed) if answers else counted
        num_tokens = sum(len(answer.answer) for answer in counted)
        about = f"{len(counted)} answers of {source.name}"
        fingerprint, size = source.tokenizer.vocabulary_fingerprint(), source.tokenizer.vocab_size
        info = MemoryInfo(fingerprint, size, order, num_tokens, source.name, about)
        progress("counting", 0, 1)
        built = build_memory([_counted(answer) for answer in counted], info, max_bytes, min_count)
        size = write_memory(path, built)
        progress("counting", 1, 1)
        report = _report(built, found, progress)
    hidden = hidden_by(path, source)
    record = {"output": str(path), "bytes": size, "sequences": len(built), "tokens": num_tokens, **report}
    record["in_place_of"] = None if hidden is None else str(hidden)
    if as_json:
        print(json.dumps(record))
        return
    _show(record)


def _some(found: "list[Conversation]", tokens: int | None, seed: int) -> "list[Conversation]":
    """A random sample of answers with about `tokens` tokens in total; all for None."""
    if tokens is None:
        return found
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(found))
    before = np.cumsum([0, *(len(found[i].answer) for i in order[:-1])])
    return [found[i] for i in order[: np.searchsorted(before, tokens)]]


def _written(
    model: str, config: "EngineConfig", prompts: Path | None, tokens: int, seed: int, progress: "NamedProgress"
) -> "tuple[ModelSource, list[Conversation]]":
    """(model, answers it generated, in this or an earlier run)."""
    from dataclasses import asdict

    from paceline.drafters.lookup.find import cached_path
    from paceline.engine.llm import LLM
    from paceline.training.self_written import SelfWriter

    kept = "ended; start the same command again to go on"
    with telling_end(kept), LLM(model, speculative=None, progress=progress, **asdict(config)) as llm:
        source = llm.source
        texts = None if prompts is None else read_prompts(prompts)
        ids = None if texts is None else [prompt_ids(llm.tokenizer, text, raw=False) for text in texts]

        def generate(asked: Any, params: Any) -> list[list[int]]:
            outputs = llm.generate(asked, params)
            return [list(each.outputs[0].token_ids) for each in outputs]

        writer = SelfWriter(llm.tokenizer, generate, cached_path(source).parent / "answers", ids, seed)
        return source, writer.write(tokens, lambda done, total: progress("writing answers", done, total))


def _clean(found: "list[Conversation]", source: "ModelSource", benchmarks: Sequence[Path]) -> "list[Conversation]":
    """The answers that share no 13 consecutive words with the prompts of `benchmarks`."""
    if not benchmarks:
        return found
    from paceline.evaluation.prompts import load_prompts
    from paceline.training.heads.conversations import is_contaminated, ngrams_of

    known = ngrams_of(one.text for path in benchmarks for one in load_prompts(str(path), all_turns=True))
    kept = [answer for answer in found if not is_contaminated(source.tokenizer.decode(answer.ids.tolist()), known)]
    messages.print(f"{len(found) - len(kept)} of {len(found)} answers share 13 words with a benchmark and are left out")
    return kept


def _counted(answer: "Conversation") -> Any:
    """The token ids to count: the answer, after the last tokens of its prompt."""
    return answer.ids[max(0, answer.num_prompt - _CONTEXT) :]


def _report(built: "Memory", found: "Sequence[Conversation]", progress: "NamedProgress") -> dict[str, Any]:
    """Tokens and drafted tokens per pass on held-out greedy answers, without and with the memory."""
    from paceline.drafters.lookup.blended import Blended
    from paceline.training.replay_lookups import replay_lookups

    held_out = [answer for answer in found if answer.is_held_out and answer.temperature == 0]
    progress("replaying", 0, 1)
    reports = [replay_lookups(Blended(each, max_cached_tokens=0), held_out) for each in (None, built)]
    progress("replaying", 1, 1)
    names = ("without", "with")
    values = {name: {"tokens_per_pass": r.tokens_per_pass, "drafted_per_pass": r.drafted_per_pass}
              for name, r in zip(names, reports, strict=True)}  # fmt: skip
    return {"held_out_answers": len(held_out), "held_out_tokens": reports[0].tokens, **values}


def _show(record: dict[str, Any]) -> None:
    table = Table("lookups in", "tokens per pass", "drafted per pass")
    for name, shown in (("without", "the request alone"), ("with", "the request and the memory")):
        values = record[name]
        table.add_row(shown, f"{values['tokens_per_pass']:.2f}", f"{values['drafted_per_pass']:.2f}")
    show_table(table, standard_output)
    size = f"{record['bytes'] / 1e6:.1f} MB, {record['sequences']} sequences of {record['tokens']} tokens"
    print(f"{record['output']}: {size}; replayed on {record['held_out_answers']} greedy answers not in it")
    if (hidden := record["in_place_of"]) is not None:
        from paceline.drafters.lookup.memory import read_memory

        known = read_memory(Path(hidden)).info.num_tokens
        print(f"auto reads it in place of {hidden}, which counts {known} tokens; delete it to go back to that one")
