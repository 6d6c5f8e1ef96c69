"""`paceline tree`: measures a draft model's guesses on your prompts and prints the best static tree for a budget."""

import json
from shlex import quote
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.prompts import prompt_ids, prompts_of
from paceline.cli.terminal.streams import messages, output, progress_bars, show_table
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams


def tree(
    prompts: Annotated[list[str], typer.Argument(help="Prompts, or @FILE: one per line, or .jsonl.")],
    model: o.Model = o.DEFAULT_MODEL,
    draft_model: Annotated[str, typer.Option("--draft-model", help="Draft model of the same vocabulary.")] = "",
    draft_dtype: Annotated[str | None, typer.Option("--draft-dtype", help="Storage of the draft's weights.")] = None,
    num_nodes: Annotated[int, typer.Option("--num-draft-tokens", "-k", help="Nodes of the tree to print.")] = 8,
    num_ranks: Annotated[int, typer.Option("--num-ranks", help="Most children of a node.")] = 8,
    depth: Annotated[int, typer.Option("--depth", help="Deepest level.")] = 8,
    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS,
    temperature: o.Temperature = o.DEFAULT_TEMPERATURE,
    seed: o.Seed = None,
    raw: o.Raw = False,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    as_json: o.Json = False,
) -> None:
    """Find the static tree that a draft model should propose: which guesses, how deep, for how many nodes.

    The target answers the prompts; every token is looked up among the draft's guesses at its place; the tree with the
    largest expected number of tokens per pass is printed, ready to be used. Takes as long as the answers, and the
    draft's passes over them.

    Examples:

        paceline tree -m target.gguf --draft-model small.gguf -k 12 "def fibonacci(n):" "The capital of France is"

        paceline tree -m target.gguf --draft-model small.gguf @prompts.txt --json

        paceline tree --draft-model smollm2-135m --draft-dtype int8 --max-tokens 64 "Once upon a time"
    """
    from paceline.config import EngineConfig
    from paceline.engine.setup.load import load
    from paceline.evaluation.tree_search import measure

    if not draft_model:
        raise InvalidParameter("draft_model", "is missing", "name a smaller model of the same family")
    if num_nodes < 1:
        raise InvalidParameter("num_draft_tokens", f"{num_nodes} is less than 1", "give the nodes of the tree")
    texts = prompts_of(prompts)
    llm = o.load_llm(model, None, dtype=dtype, num_threads=threads, executor=executor)
    config = EngineConfig(dtype=draft_dtype or dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    ids = [prompt_ids(llm.tokenizer, text, raw) for text in texts]
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    with progress_bars() as progress:
        draft = load(draft_model, config, progress)
        if not llm.tokenizer.same_vocabulary(draft.source.tokenizer):
            raise InvalidParameter("draft_model", f"{draft_model} has another vocabulary", "choose one of the family")
        search = measure(llm, draft.model, ids, params, num_ranks, depth, progress)
    paths = search.paths(num_nodes)
    if as_json:
        print(json.dumps({"num_tokens": search.num_tokens, "accuracies": search.accuracies, "paths": paths,
                          "tokens_per_pass": search.tokens_per_pass(paths)}))  # fmt: skip
        return
    draft_options = f"--draft draft_model --draft-model {quote(draft_model)}"
    draft_options += f" --draft-option dtype={draft_dtype}" if draft_dtype else ""
    _print(search, paths, num_nodes, draft_options)


def _print(search, paths, num_nodes: int, draft_options: str) -> None:
    """Print the accuracies, expected tokens per pass of trees of several sizes, and the options to use."""
    shares = ", ".join(f"{share:.1%}" for share in search.accuracies)
    messages.print(f"{search.num_tokens} tokens; the draft's guess 1, 2, ... was right for {shares}")
    table = Table("nodes", "chain", "best tree", title="expected tokens per target pass")
    for size in sorted({1, 2, 4, 8, 16, 32, num_nodes}):
        chain, best = search.chain(size), search.paths(size)
        table.add_row(str(size), f"{search.tokens_per_pass(chain):.3f}", f"{search.tokens_per_pass(best):.3f}")
    show_table(table, output)
    if not paths:
        messages.print(
            "No guess of the draft was right, so there is no tree: use another draft model, or train this one."
        )
        return
    gain = search.tokens_per_pass(paths) / search.tokens_per_pass(search.chain(num_nodes))
    messages.print(
        f"With {num_nodes} nodes the best tree is expected to give {gain:.2f} times the tokens per pass of a chain."
    )
    option = json.dumps([list(path) for path in paths], separators=(",", ":"))
    print(f"{draft_options} --draft-option tree=static --draft-option 'paths={option}'")
