"""Sampled text that does not depend on the drafter: with a seed it is what plain sampling says with that seed."""

from paceline import LLM, SamplingParams

params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=32)
plain = LLM("smollm2-135m", speculative=None)
drafted = plain.drafting_with("ngram")

prompt = "Once there was a lighthouse. The lighthouse"
texts = {name: llm.generate(prompt, params)[0].text for name, llm in (("plain", plain), ("drafted", drafted))}
print(texts["plain"])
assert texts["plain"] == texts["drafted"]
print("drafted with ngram: the same text")
