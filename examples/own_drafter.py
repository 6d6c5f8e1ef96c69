"""A drafter of your own: it guesses that a token is followed by what followed it last time. Checked, then used."""

from paceline import LLM, SamplingParams
from paceline.sampling import TokenTree
from paceline.testing import check_drafter


class Follower:
    name = "follower"

    def __init__(self, max_tokens=4):
        self._max_tokens, self._followers, self._num_seen = max_tokens, {}, {}

    def propose(self, contexts):
        return [self._chain(context.token_ids[-1], context.budget) for context in contexts]

    def observe(self, request_id, token_ids, finished):
        for at in range(max(1, self._num_seen.get(request_id, 0)), len(token_ids)):
            self._followers[token_ids[at - 1]] = token_ids[at]
        self._num_seen[request_id] = len(token_ids)
        if finished:
            self.release(request_id)

    def release(self, request_id):
        self._num_seen.pop(request_id, None)

    def _chain(self, token, budget):
        tokens = []
        while len(tokens) < min(self._max_tokens, budget) and token in self._followers:
            token = self._followers[token]
            tokens.append(token)
        return TokenTree.chain(tokens)


if __name__ == "__main__":
    print(check_drafter(Follower))
    llm = LLM("smollm2-135m", speculative={"method": "__main__:Follower", "options": {"max_tokens": 3}})
    [output] = llm.generate("1, 2, 3, 1, 2, 3, 1,", SamplingParams(temperature=0, max_tokens=32))
    print(output.text, f"{output.stats.acceptance_length:.2f} tokens per pass", sep="\n")
