"""`paceline chat`: a conversation in the terminal; each answer streams, drafted tokens in colour."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.conversation import Conversation
from paceline.cli.options import model as o
from paceline.cli.options.groups import Drafting, Machine, Sampling, grouped
from paceline.cli.options.prompts import argument_text
from paceline.cli.terminal.line_input import line_reader
from paceline.cli.terminal.runs import LEGEND, TokenPrinter, closing_table, why_cut, why_short
from paceline.cli.terminal.streams import messages, output, show_table, warnings_later
from paceline.errors import EngineDead, InvalidParameter, PacelineError
from paceline.types import SamplingParams

if TYPE_CHECKING:
    from paceline.engine.llm import LLM
    from paceline.evaluation.report import Run

COMMANDS = {
    "/help": "this list",
    "/clear": "forget the conversation (/reset is the same)",
    "/stats": "figures of the last answer",
    "/save FILE": "write the conversation to a file",
    "/exit": "leave; so do /quit and Ctrl-D",
}


@dataclass(frozen=True, slots=True)
class ChatSampling(Sampling):
    """A conversation is sampled unless asked otherwise."""

    max_tokens: o.MaxTokens = 512
    temperature: o.Temperature = 0.7
    top_p: o.TopP = 0.95


@grouped
def chat(
    model: o.Model = o.DEFAULT_MODEL,
    *,
    drafting: Drafting,
    sampling: ChatSampling,
    system: o.System = None,
    chat_template: o.ChatTemplate = None,
    machine: Machine,
) -> None:
    """Chat with a model. Lines can be edited, /help lists the commands, Ctrl-C ends an answer.

    When the context is full the oldest turns are left out of the prompt, and a line says so; /save still writes them.

    Examples:

        paceline chat

        paceline chat -m qwen.gguf --draft draft_model --draft-model qwen-small.gguf --temperature 0
    """
    params = sampling.params()
    system = None if system is None else argument_text("system", system)
    llm = o.load_llm(model, drafting.config(), chat_template=chat_template, **machine.engine())
    if not llm.tokenizer.has_chat_template:
        problem = "the model has none, and a conversation needs one"
        remedy = "give it one with --chat-template FILE, or use paceline generate, which takes the prompt as it is"
        raise InvalidParameter("chat_template", problem, remedy)
    o.say_dtype(llm, machine.dtype)
    messages.print("/help lists the commands, /exit leaves.", style="dim")
    messages.print(LEGEND)
    conversation = Conversation(llm.chat_prompt, llm.max_model_len, sampling.max_tokens, system)
    ChatLoop(llm, params, conversation).run(line_reader("you> ", [name.split()[0] for name in COMMANDS]))


class ChatLoop:
    """The loop that reads and answers messages; it ends at /exit, at the end of the input or with the engine."""

    def __init__(self, llm: "LLM", params: SamplingParams, conversation: Conversation) -> None:
        self._llm, self._params, self._conversation = llm, params, conversation
        self._last: Run | None = None

    def run(self, read: Callable[[], str]) -> None:
        """Run until /exit or the end of the input."""
        while True:
            try:
                text = read().strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text in ("/exit", "/quit"):
                return
            try:
                self._obey(text) if _is_command(text) else self._answer(text.removeprefix("/"))
            except EngineDead:
                raise
            except PacelineError as error:
                messages.print(str(error), style="red", soft_wrap=True)

    def _obey(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name in ("/clear", "/reset"):
            self._conversation.clear()
            messages.print("The conversation is forgotten.", style="dim")
        elif name == "/save" and argument.strip():
            count = self._conversation.save(Path(argument.strip()))
            messages.print(f"{count} messages written to {argument.strip()}", style="dim", soft_wrap=True)
        elif name == "/stats":
            self._show_stats()
        else:
            if name != "/help":
                messages.print(f"No such command, or without its file: {text}", style="red", soft_wrap=True)
            for command, what in COMMANDS.items():
                messages.print(f"{command:<11} {what}")
            messages.print("A message that begins with a slash is written with two: //etc/hosts")

    def _show_stats(self) -> None:
        if self._last is None:
            messages.print("no answer yet")
        else:
            show_table(closing_table(self._last, None, o.drafter_of(self._llm)))

    def _answer(self, text: str) -> None:
        from paceline.evaluation.report import run_once

        if not text:
            return
        ids, dropped = self._conversation.ask(text)
        if dropped:
            messages.print(
                f"(the context is full: the oldest {dropped} messages are left out from here on)", style="dim"
            )
        printer = TokenPrinter(output)
        with warnings_later():
            try:
                self._last = run_once(self._llm, ids, self._params, printer)
            except BaseException as error:
                self._conversation.take_back()
                if not isinstance(error, KeyboardInterrupt):
                    raise
                messages.print("\n(cut off; the question is taken back)", style="dim")
                return
            printer.finish()
        said = self._last.output
        if remark := why_short(said) or why_cut(said, self._params.max_tokens):
            messages.print(remark, style="dim")
        self._conversation.answer(self._last.output.text)


def _is_command(text: str) -> bool:
    return text.startswith("/") and not text.startswith("//")
