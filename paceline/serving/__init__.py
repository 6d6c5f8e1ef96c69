"""The front: models behind HTTP. Those of this process are `local.py`, those of a planned cluster `cluster/`."""
