"""`paceline theory`: the commands of the group (`group.py`), and modules for those that are long."""

from paceline.cli.theory.group import app as app
