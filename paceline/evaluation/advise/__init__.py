"""`paceline advise`: predict the speed-up of speculation on the user's own traffic.

Drafts for logged answers are replayed without generating (`replay.py`); the cost of rounds comes from `paceline tune`
(`predict.py`). The result is a drafter with its length, or the advice not to speculate.
"""
