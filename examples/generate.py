"""Several prompts in one batch, with what drafting did for each."""

from paceline import LLM, SamplingParams

PROMPTS = [
    "The three primary colours are",
    "for i in range(10):\n    print(i)\n\nfor i in range(20):\n",
]

llm = LLM("smollm2-135m", speculative="ngram")
for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24)):
    length = output.stats.acceptance_length
    print(f"{output.prompt!r}\n  -> {output.text!r}\n  {length:.2f} tokens per pass, ended by {output.finish_reason}")
