"""`paceline chat`: a conversation in the terminal; each answer streams, drafted tokens in colour."""

from typing import Annotated

import typer
from rich.console import Console

from paceline.cli import options as o
from paceline.cli.show import LEGEND, TokenPrinter, closing_table
from paceline.types import SamplingParams

HELP = "/reset forgets the conversation, /stats shows the last answer's figures, /quit (or Ctrl-D) leaves."


def chat(
    model: o.Model = o.DEFAULT_MODEL,
    draft: o.Draft = "suffix",
    draft_model: o.DraftModel = None,
    num_draft_tokens: o.NumDraft = None,
    rule: o.Rule = "p/q",
    policy: o.Policy = "auto",
    draft_option: o.DraftOption = None,
    policy_option: o.PolicyOption = None,
    max_tokens: o.MaxTokens = 512,
    temperature: o.Temperature = 0.7,
    top_p: o.TopP = 0.95,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
) -> None:
    """Chat with a model. The suffix drafter learns from the conversation as it goes.

    Examples:

        paceline chat

        paceline chat -m qwen.gguf --draft draft_model --draft-model qwen-small.gguf --temperature 0
    """
    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    )
    speculative = o.speculative_config(draft, draft_model, num_draft_tokens, rule, policy, draft_option, policy_option)
    llm = o.load_llm(model, speculative, dtype=dtype, num_threads=threads, executor=executor)
    o.messages.print(f"[dim]{HELP}[/]")
    o.messages.print(LEGEND)
    _converse(llm, params, draft, [{"role": "system", "content": system}] if system else [])


def _converse(llm, params: SamplingParams, draft: str, opening: list[dict[str, str]]) -> None:
    """Read, answer, repeat. Ctrl-C ends an answer, not the conversation."""
    from paceline.evaluation.report import run_once

    console = Console(highlight=False)
    messages, last = list(opening), None
    while True:
        try:
            text = console.input("[bold]you> [/]").strip()
        except EOFError:
            return
        if text == "/quit":
            return
        if text == "/reset":
            messages = list(opening)
        elif text == "/stats":
            o.messages.print(closing_table(last, None, draft) if last else "no answer yet")
        elif text:
            messages.append({"role": "user", "content": text})
            try:
                last = run_once(llm, llm.chat_prompt(messages), params, TokenPrinter(console))
            except KeyboardInterrupt:
                messages.pop()
                console.print("\n[dim](cut off; the question is taken back)[/]")
                continue
            console.print()
            messages.append({"role": "assistant", "content": last.output.text})
