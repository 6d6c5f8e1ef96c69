"""`paceline audit`: evidence that speculation changes nothing, for the user's model, settings and prompts.

Every check has a verdict of its own. Faults injected on purpose, the controls, must be found by the same checks.
"""
