"""The HTTP server: models in this process (`local.py`) or on a planned cluster (`cluster/`)."""
