"""The steps of an engine: schedule, propose, run, verify, update, observe, and what each needs to know of a request."""
