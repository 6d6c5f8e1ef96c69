"""What clients send and get, in the formats of OpenAI, Anthropic and llama.cpp: bodies as jobs, chunks as answers."""
