"""Several drafters side by side: at each step the one that is expected to give the most tokens per second drafts."""
