"""`paceline export`: a plan for vLLM, Ray Serve LLM, Kubernetes or Docker Compose."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    plan: Annotated[Path, typer.Argument(help="What `paceline place --output` wrote.")],
    to: Annotated[str, typer.Option("--to", help="vllm, ray-serve, kubernetes or compose.")],
    image: Annotated[str, typer.Option("--image", help="Of containers, with the extra `cluster`.")] = "paceline",
    resource: Annotated[
        str, typer.Option("--resource", help="What Kubernetes calls a device; cpu for processors.")
    ] = "nvidia.com/gpu",
    devices_per_node: Annotated[int, typer.Option("--devices-per-node", help="For vLLM commands.")] = 8,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="NAME=MODEL: weights of a plan's model; repeatable.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to standard output.")] = None,
) -> None:
    """Write a plan's groups as another runtime has them.

    vLLM and Ray Serve LLM run one engine for each model of a group. Kubernetes and Compose run one
    `paceline serve --cluster` for each group, with the group's part of the plan. Models that the plan leaves out, or
    whose weights it does not name, are told on standard error.

    Examples:

        paceline export plan.json --to vllm --weights chat=Qwen/Qwen2.5-1.5B-Instruct

        paceline export plan.json --to kubernetes --image registry.example/paceline:1 | kubectl apply -f -
    """
    from paceline.cli.options.case import check_outputs
    from paceline.cli.options.serving import named_models
    from paceline.cli.terminal.streams import messages
    from paceline.serving.cluster.export import export as exported
    from paceline.serving.cluster.export import remarks
    from paceline.serving.cluster.plan import read_plan

    check_outputs(output)
    found = read_plan(plan).with_paths(named_models("weights", weights))
    text = exported(found, to, image, resource, devices_per_node)
    for remark in remarks(found, to):
        messages.print(remark, soft_wrap=True)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)
