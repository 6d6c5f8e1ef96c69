"""`paceline audit`: evidence that speculation changes nothing, for one's own model, settings and prompts.

Every check is a question with a verdict of its own; faults that are put in on purpose must be found by the same tests.
"""
