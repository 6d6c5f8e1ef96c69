"""The command line: one module per command, or one per group of commands, each of which parses, calls and prints."""

import sys


def run() -> None:
    """Import the commands and run one; Ctrl-C ends either without a traceback."""
    try:
        from paceline.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
