"""A drafter of your own: it guesses that a token is followed by what followed it last time. Checked, then used."""

from paceline import LLM, SamplingParams
from paceline.drafters.base import BaseDrafter
from paceline.sampling import TokenTree
from paceline.speculation import DrafterTraits
from paceline.testing import check_drafter


class Follower(BaseDrafter):
    name = "follower"
    traits = DrafterTraits(deterministic=True, remembers=True)

    def __init__(self, max_tokens=4):
        self._max_tokens, self._followers = max_tokens, {}

    def propose(self, contexts):
        return [self._chain(context.token_ids[-1], context.longest) for context in contexts]

    def observe(self, outcome):
        text = outcome.token_ids
        first_new = 1 if outcome.num_prefill_tokens else len(text) - outcome.num_new
        for at in range(first_new, len(text)):
            self._followers[text[at - 1]] = text[at]

    def _chain(self, token, longest):
        tokens = []
        while len(tokens) < min(self._max_tokens, longest) and token in self._followers:
            token = self._followers[token]
            tokens.append(token)
        return TokenTree.chain(tokens)


if __name__ == "__main__":
    print(check_drafter(Follower))
    llm = LLM("smollm2-135m", speculative={"method": "__main__:Follower", "options": {"max_tokens": 3}})
    [output] = llm.generate("1, 2, 3, 1, 2, 3, 1,", SamplingParams(temperature=0, max_tokens=32))
    print(output.text, f"{output.stats.acceptance_length:.2f} tokens per pass", sep="\n")
