"""`paceline bench`: ways of decoding measured side by side, in pairs, with intervals.

Configurations on this machine and OpenAI URLs are *arms*. All arms answer a prompt before the next one begins, in
balanced orders (`schedule.py`). Plain decoding always runs twice, and the difference of the two is the noise.
"""
