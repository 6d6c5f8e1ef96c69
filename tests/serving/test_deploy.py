"""What `deploy/` holds fits the server: options exist, metrics on the board are told, nothing runs as root."""

import asyncio
import json
import re
from pathlib import Path

import yaml

from paceline.cli.main import app
from paceline.models.cache_dir import CACHE_VARIABLE
from tests.serving.conftest import MODEL

DEPLOY = Path(__file__).parents[2] / "deploy"


def options():
    import typer.main

    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {parameter.name for parameter in command.params}


def test_options_exist():
    names = {key.replace("-", "_") for key in yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())}
    environment = re.findall(r"PACELINE_([A-Z_]+)=", (DEPLOY / "Dockerfile").read_text())
    assert names | {name.lower() for name in environment if f"PACELINE_{name}" != CACHE_VARIABLE} <= options()
    command = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["paceline"]["command"]
    assert {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", command)} <= options()


def test_it_is_not_root_and_has_time_to_drain():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert lines.index("USER paceline") < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    unit = (DEPLOY / "systemd/paceline.service").read_text()
    drain = yaml.safe_load((DEPLOY / "systemd/serve.yaml").read_text())["drain-seconds"]
    assert "DynamicUser=yes" in unit and int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drain


def test_every_metric_on_the_board_is_told(serving):
    async def scene():
        async with serving() as client:
            await client.post("/v1/completions", json={"model": MODEL, "prompt": "abcabcabc", "max_tokens": 20})
            return (await client.get("/metrics")).text

    told = set(re.findall(r"^# TYPE (\S+)", asyncio.run(scene()), re.M))
    board = json.loads((DEPLOY / "grafana/board.json").read_text())
    asked = {
        name for panel in board["panels"] for t in panel["targets"] for name in re.findall(r"paceline:\w+", t["expr"])
    }
    assert len(asked) > 12
    assert {name.removesuffix("_bucket") for name in asked} <= told
