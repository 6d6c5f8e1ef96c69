"""Stream a chat answer; accepted drafted tokens are in brackets, the target's own are not."""

from paceline import LLM, SamplingParams

llm = LLM("smollm2-135m", speculative={"method": "suffix", "num_draft_tokens": 6})
prompt = llm.chat_prompt([{"role": "user", "content": "Count from one to ten, then again from one to ten."}])
stream = llm.stream(prompt, SamplingParams(temperature=0, max_tokens=48))
for token in stream:
    print(f"[{token.text}]" if token.provenance == "drafted" else token.text, end="", flush=True)
print(f"\n{stream.output.stats.num_accepted_tokens} of {len(stream.output.token_ids)} tokens were drafted")
