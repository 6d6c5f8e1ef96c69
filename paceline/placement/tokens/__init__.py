"""Requests that are generated token by token, in groups that run many of them at once: costs, the rule, its simulator.

The paper's requests are one pass each (`placement/simulator/`). Here a group does rounds: one pass of every model that
has work, over all its running requests. The cluster's controller predicts by the very kernel that the simulator plays.
"""

from paceline.placement.tokens.group import Outlook, TokenAsk, TokenGroup
from paceline.placement.tokens.profile import TokenProfile
from paceline.placement.tokens.requests import TokenRequests
from paceline.placement.tokens.simulator import TokenModel, TokenResult, simulate_tokens

__all__ = [
    "Outlook",
    "TokenAsk",
    "TokenGroup",
    "TokenModel",
    "TokenProfile",
    "TokenRequests",
    "TokenResult",
    "simulate_tokens",
]
