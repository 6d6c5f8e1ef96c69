"""`paceline train joint`: heads together with their target, which changes the target."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli import train_options as t
from paceline.cli.terminal import messages, progress_bars


def joint(
    family: Annotated[str, typer.Argument(help="medusa (Medusa-2) or blockwise.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new model and its heads.")],
    model: o.Model = o.DEFAULT_MODEL,
    rank: Annotated[int, typer.Option("--rank", help="Rank of the updates of the model's matrices.")] = 16,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", help="Heads.")] = 3,
    draft_vocabulary: Annotated[int, typer.Option("--draft-vocabulary", help="Tokens the heads can name.")] = 8192,
    time_budget: t.TimeBudget = "60m",
    tokens: t.Tokens = 2_000_000,
    prompts: t.Prompts = None,
    exclude: t.Exclude = None,
    steps: t.Steps = None,
    work: t.Work = None,
    plot: t.Plot = None,
    seed: t.Seed = 0,
    dtype: o.Dtype = "w8a8",
    threads: o.Threads = None,
    as_json: o.Json = False,
) -> None:
    """CHANGES YOUR MODEL: train heads and low-rank updates of the model together (Medusa-2, self-distillation).

    The result is another model (OUTPUT/target) that says other text, with heads for it (OUTPUT/heads). Its text is as
    exact under drafts as any model's; only it is no longer the text of the model you began with. How far it went is
    printed and kept in its card. Heads that leave the model alone: paceline train head.

    Examples:

        paceline train joint medusa -m smollm2-135m --time-budget 60m -o changed

        paceline generate -m changed/target -d head --draft-model changed/heads "Why is the sky blue?"

        paceline generate -m changed/target -d head --draft-model changed/heads --rule typical --temperature 0.7 "Hello"
    """
    from paceline.config import EngineConfig
    from paceline.evaluation.joint_training import JointJob, train_joint
    from paceline.training.run.loop import LoopSettings

    text = t.text_job(model, work, tokens, time_budget, seed, prompts, exclude)
    loop = LoopSettings(num_steps=steps, seconds=t.seconds_of(time_budget), rate=1e-3, seed=seed)
    job = JointJob(family, text, loop, num_draft_tokens, draft_vocabulary, rank)
    with progress_bars() as progress:
        config = EngineConfig(dtype=dtype, num_threads=threads)
        done, drift = train_joint(job, config, output, progress, t.TrainingBar(progress))
    if plot is not None:
        t.draw_curve(done, f"{family} and target", plot)
    if as_json:
        print(json.dumps({"output": str(output), "drift": drift, **asdict(done)}))
        return
    messages.print(
        f"{output}: a CHANGED model and its heads, {(done.best or {}).get('replayed', 0):.2f} tokens per pass; "
        f"{drift['other_best_token']:.1%} of its most probable tokens are others than before (KL {drift['kl']:.4f})"
    )
