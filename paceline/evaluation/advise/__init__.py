"""`paceline advise`: predict the speed-up of speculation on the user's own traffic.

Drafts for logged answers are replayed without generating (`replay.py`). The cost of rounds is timed, or comes from
`paceline tune` (`prices.py`). The result is a drafter with its length, or the advice not to speculate.
"""
