"""Rules that are often written and are wrong. The exactness check must tell them from the right ones."""

from paceline.sampling import ROOT, Law, Randomness, TargetLaws, TokenTree, Verdict
from paceline.sampling.verify import Choice, walk


def merge_equal_draws(tree: TokenTree) -> TokenTree:
    """Sibling draws of one token collapsed into one node, as a set union of candidate sequences does."""
    first = {token: node for node, token in reversed(list(enumerate(tree.tokens)))}
    kept = sorted(first.values())
    rows = tuple(tree.draft_rows[node] for node in kept) if tree.draft_rows else None
    return TokenTree(tuple(tree.tokens[node] for node in kept), (-1,) * len(kept), tree.draw, tree.draft_laws, rows)


def ratio_for_top_tokens(draft: Law, width: int) -> TokenTree:
    """The draft's most probable tokens dressed up as draws, so that they meet the ratio p/q."""
    tokens = tuple(sorted(draft.tokens.tolist(), key=lambda token: -draft.prob(token))[:width])
    return TokenTree(tokens, (-1,) * width, "iid", (draft,), (0,) * width)


def keep_only_likely_draws(draft: Law, randomness: Randomness) -> TokenTree:
    """A stop that looks at the token just drawn and throws it away unless it is the most probable one."""
    token = randomness.draw(draft, 0, "draft", 0)
    return TokenTree.chain((token,), (draft,)) if token == draft.mode else TokenTree()


def without_renormalising(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """Draws without replacement, tested against the draft law they no longer come from."""

    def choose(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
        for refused, child in enumerate(tree.children(node)):
            draft = tree.draft_law(child)
            if randomness.coin(law.prob(tree.tokens[child]) / draft.prob(tree.tokens[child]), position, child):
                return child, law, refused
            law = law.residual(draft)
        return None, law, len(tree.children(node))

    return walk(tree, target, randomness, position, choose)


def envelope_over_the_drafts_tokens(
    tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int
) -> Verdict:
    """Rejection sampling with M = max p / q over the tokens that the draft can say, where the target can say others."""

    def choose(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
        [child] = tree.children(node)
        draft = tree.draft_law(child)
        most = (law.on(draft.tokens) / draft.probs).max()
        chance = law.prob(tree.tokens[child]) / (most * draft.prob(tree.tokens[child]))
        return (child, law, 0) if randomness.coin(chance, position, child) else (None, law, 1)

    return walk(tree, target, randomness, position, choose)


def residual_after_the_envelope(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """Rejection sampling whose rejected token is replaced by a draw from the residual, as under p/q."""

    def choose(tree: TokenTree, node: int, law: Law, randomness: Randomness, position: int) -> Choice:
        [child] = tree.children(node)
        draft, token = tree.draft_law(child), tree.tokens[child]
        chance = law.rejection_acceptance(draft) * law.prob(token) / draft.prob(token)
        return (child, law, 0) if randomness.coin(chance, position, child) else (None, law.residual(draft), 1)

    return walk(tree, target, randomness, position, choose)


def recover_from_the_target(tree: TokenTree, target: TargetLaws, randomness: Randomness, position: int) -> Verdict:
    """A rejected token replaced by a draw from the target's law instead of the residual."""
    path: tuple[int, ...] = ()
    for node in range(len(tree)):
        law, token = target(node - 1), tree.tokens[node]
        if not randomness.coin(law.prob(token) / tree.draft_law(node).prob(token), position + node, node):
            break
        path += (node,)
    node = path[-1] if path else ROOT
    return Verdict(path, randomness.draw(target(node), position + len(path), "target"), "recovered", 0)
