"""Models: what they compute (`architecture/`), their files (`files/`), where these come from (`fetch/`), their
tokenizers (`text/`), and the executors that implement `CausalLM`."""
