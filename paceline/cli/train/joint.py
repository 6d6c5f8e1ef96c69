"""`paceline train joint`: heads together with their target, which changes the target."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options.groups import grouped
from paceline.cli.terminal.streams import messages
from paceline.cli.train import options as t
from paceline.cli.train.command_line import command_line

_RATE = 5e-4
"""Default learning rate of the target; heads have four times that, as when they are trained for a frozen one."""


@grouped
def joint(
    family: Annotated[str, typer.Argument(help="medusa (Medusa-2) or blockwise.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new model and its heads.")],
    *,
    context: typer.Context,
    run: t.TrainingRun,
    lora_rank: Annotated[
        int, typer.Option("--lora-rank", min=1, help="Rank of the updates of the model's matrices.")
    ] = 16,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", help="Heads.")] = 3,
    draft_vocabulary: Annotated[int, typer.Option("--draft-vocabulary", help="Most tokens the heads can name.")] = 8192,
) -> None:
    """CHANGES YOUR MODEL: train heads and low-rank updates of the model together (Medusa-2, self-distillation).

    The result is another model (OUTPUT/target) that says other text, with heads for it (OUTPUT/heads). Its text is as
    exact under drafts as any model's; only it is no longer the text of the model you began with. How far it went is
    printed and kept in its card. Heads that leave the model alone: paceline train head. Takes about as long as
    --time-budget says, an hour unless given, and one round of writing, of some minutes, at least.

    Examples:

        paceline train joint medusa -m smollm2-135m --time-budget 60m -o changed

        paceline generate -m changed/target -d head --draft-model changed/heads "Why is the sky blue?"

        paceline generate -m changed/target -d head --draft-model changed/heads --rule typical --temperature 0.7 "Hello"
    """
    from paceline.training_jobs.joint import JointJob, train_joint

    job = JointJob(
        family, run.text(), run.loop(_RATE), num_draft_tokens, draft_vocabulary, lora_rank, command_line(context)
    )
    t.check_places(output, run.plot)
    with t.training_bars() as progress:
        done, drift = train_joint(job, run.config(), output, progress, t.TrainingBar(progress), t.remark)
    if run.plot is not None:
        t.draw_curve(done, f"{family} and target", run.plot)
    if run.as_json:
        print(json.dumps({"output": str(output), "drift": drift, **asdict(done)}))
        return
    messages.print(
        f"{output}: a CHANGED model and its heads, {t.greedy_figure(done.best)}; "
        f"{drift['other_best_token']:.1%} of its most probable tokens are others than before (KL {drift['kl']:.4f})"
    )
