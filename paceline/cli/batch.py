"""`paceline batch`: OpenAI's batch files, answered offline."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.options import model as o
from paceline.cli.options.groups import Drafting, grouped
from paceline.cli.options.sizes import bytes_of
from paceline.cli.serve import need_extras
from paceline.cli.terminal.streams import messages, number_of, progress_bars, telling_end
from paceline.disk import check_placed_file, is_device
from paceline.errors import InvalidParameter


@grouped
def batch(
    source: Annotated[Path, typer.Argument(metavar="IN", help="JSON Lines of requests, as for OpenAI's batch API.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Answers are added here, in the order they end.")],
    model: o.Model = o.DEFAULT_MODEL,
    *,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="What requests call the model; its name by default.")
    ] = None,
    drafting: Drafting,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    max_num_seqs: o.MaxNumSeqs = o.DEFAULT_MAX_NUM_SEQS,
    kv_cache_memory_bytes: o.CacheBytes = None,
    chat_template: o.ChatTemplate = None,
) -> None:
    """Answer a file of requests without a server; what an earlier run has answered is not asked again.

    A request for another model than --model (or --served-model-name) is refused; one that names none is for it. A
    request that is refused gets a line with its error and counts as answered. Exit 0: OUT has an answer for every
    request; 1: all were asked, and OUT has errors for some; 2: the batch could not be run.

    Examples:

        paceline batch requests.jsonl answers.jsonl

        paceline batch requests.jsonl answers.jsonl --draft suffix --max-num-seqs 16
    """
    need_extras()
    from paceline.serving.batch import answered, num_refused, read_requests

    _check_target(source, target)
    requests, done = read_requests(source), answered(target)
    if not requests:
        raise InvalidParameter("input", f"{source} is empty", "give at least one request")
    waiting = [request for request in requests if request["custom_id"] not in done]
    if done:
        messages.print(f"{len(requests) - len(waiting)} of {len(requests)} are answered already")
    if waiting:
        speculative = drafting.config()
        engine = {"dtype": dtype, "num_threads": threads, "max_num_seqs": max_num_seqs,
                  "kv_cache_memory_bytes": bytes_of("kv_cache_memory_bytes", kv_cache_memory_bytes),
                  "chat_template": chat_template}  # fmt: skip
        with telling_end(f"ended; start the same command again to go on: {target} keeps the answers that it has"):
            asyncio.run(_run(model, served_model_name or model, speculative, engine, waiting, target))
    if refused := num_refused(target, requests):
        where = (
            f"{refused} of {len(requests)} requests were refused: see the lines of {target} whose status_code is not"
        )
        messages.print(f"{where} 200; remove them to have these requests asked again", soft_wrap=True)
        raise typer.Exit(1)


def _check_target(source: Path, target: Path) -> None:
    """Raise InvalidParameter where answers cannot be added to `target`, or found there by a later run."""
    if is_device(target):
        raise InvalidParameter("output", f"{target} is no file", "name one: what it holds is not asked again")
    check_placed_file("output", target)
    if target.exists() and target.samefile(source):
        raise InvalidParameter("output", f"{target} holds the requests", "name another file")


async def _run(
    model: str, name: str, speculative: Any, engine: dict[str, Any], requests: list[Any], target: Path
) -> None:
    from paceline.serving.batch import run_batch
    from paceline.serving.http.front import Front
    from paceline.serving.models.local import LocalBackend
    from paceline.serving.models.model_spec import ModelSpec
    from paceline.serving.models.worker import open_model
    from paceline.serving.settings import Settings

    with progress_bars() as progress:
        opener = partial(open_model, speculative=speculative, progress=progress, **engine)
        backend = LocalBackend([ModelSpec(name, model)], opener)
    front = Front(backend, Settings(max_running=engine["max_num_seqs"], max_queue=1 << 20))
    num_written = 0
    try:
        with target.open("a", encoding="utf-8") as out, progress_bars() as progress:
            progress("answers", 0, len(requests))

            def write(line: dict[str, Any]) -> None:
                nonlocal num_written
                num_written += 1
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
                out.flush()
                progress("answers", num_written, len(requests))

            await run_batch(front, requests, write)
    finally:
        await backend.close()
    messages.print(f"{number_of(len(requests), 'line')} added to {target}", soft_wrap=True)
