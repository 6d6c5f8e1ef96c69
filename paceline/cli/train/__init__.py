"""`paceline train`: one module per command of the group (`group.py`)."""

from paceline.cli.train.group import app as app
