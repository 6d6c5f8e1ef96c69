"""Passes of models and heads that draft: caches, and chains and trees grown pass by pass. Not drafters themselves."""
