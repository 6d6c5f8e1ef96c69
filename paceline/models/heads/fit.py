"""Whether a head was made for this target: sizes, weights and chat template, compared before anything is drafted.

A head reads hidden states of one set of weights; with others it drafts nonsense, which costs time and changes no text.
So other weights are refused, another template is warned about. Not for what a head computes (`shapes.py`).
"""

from paceline.errors import InvalidParameter
from paceline.models.heads.record import HeadRecord, TargetPrint

_SHORT = 12


def check_fit(record: HeadRecord, target: TargetPrint, any_weights: bool = False) -> tuple[str, ...]:
    """What is worth a warning about `record` beside `target`, a sentence each.

    Args:
        any_weights: let other weights of the same sizes pass, with a warning.

    Raises:
        InvalidParameter: another width, vocabulary, depth, or other weights.
    """
    own, warnings = record.config.target, []
    for field, noun in (("hidden_size", "width"), ("vocab_size", "vocabulary"), ("num_hidden_layers", "depth")):
        found, wanted = getattr(own, field), getattr(target, field)
        if found and found != wanted:
            raise InvalidParameter(
                "head", f"was trained for a target of {noun} {found}, {target.name} has {wanted}",
                f"use a head of {target.name}, or train one: paceline train head",
            )  # fmt: skip
    if own.sha256 and target.sha256 and own.sha256 != target.sha256:
        problem = (
            f"was trained for other weights: {own.name} ({own.sha256[:_SHORT]}), not {target.name} "
            f"({target.sha256[:_SHORT]})"
        )
        if not any_weights:
            raise InvalidParameter("head", problem, "use the file it was trained with, or train one for this file")
        warnings.append(f"the head {problem}")
    if own.template_sha256 and target.template_sha256 and own.template_sha256 != target.template_sha256:
        warnings.append("the head was trained under another chat template: expect fewer accepted tokens")
    return tuple(warnings)
