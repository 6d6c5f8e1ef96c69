"""The HTTP server: models in this process (`models/`) or on a planned cluster (`cluster/`)."""
