"""Checks that a head was trained for a target, by sizes, weights and chat template.

A head reads hidden states of one set of weights. With other weights its drafts are rejected: texts stay the same, but
time is lost. So other weights are an error, another chat template a warning. Not for shapes of tensors (`shapes.py`).
"""

from paceline.errors import InvalidParameter
from paceline.models.heads.record import HeadRecord, TargetPrint

_SHORT = 12


def check_fit(record: HeadRecord, target: TargetPrint, any_weights: bool = False) -> tuple[str, ...]:
    """Warnings about using `record` with `target`, one sentence each.

    Args:
        any_weights: accept other weights of the same sizes, with a warning.

    Raises:
        InvalidParameter: the head was trained for another width, vocabulary or depth, or for other weights.
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
