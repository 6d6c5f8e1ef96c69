"""`python -m paceline` is `paceline`."""

from paceline.cli import run

if __name__ == "__main__":
    run()
