"""`paceline advise`: what speculation would bring on one's own traffic, before it is switched on.

Logged answers are drafted for again without generating (`replay.py`); what rounds cost comes from `paceline tune`
(`predict.py`); the answer is a drafter with its length, or not to speculate.
"""
