"""Number of experts that a pass activates in a mixture of experts: why verifying many tokens is expensive there.

Not the place for what an expert costs (`speculation/cost.py`).
"""

from paceline.theory.checks import check_count


def expected_experts(num_experts: int, num_experts_per_tok: int, num_rows: int) -> float:
    """N (1 - (1 - k / N)^rows): experts of a layer that `num_rows` rows touch when each takes k of N at random.

    Rows of one text choose alike, so a real pass touches fewer.
    """
    check_count("num_rows", num_rows)
    check_count("num_experts_per_tok", num_experts_per_tok, least=1)
    check_count("num_experts", num_experts, least=num_experts_per_tok)
    return num_experts * (1 - (1 - num_experts_per_tok / num_experts) ** num_rows)
