"""Serving many models on a cluster: the groups of a plan, dispatch of requests, and recovery from failed groups."""
