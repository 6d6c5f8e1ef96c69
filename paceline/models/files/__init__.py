"""Weights in files: GGUF and safetensors, read lazily, and folders that are written."""
