"""Between text and tokens: prompts, incremental output, log-probabilities and grammars. Knows nothing of the loop."""
