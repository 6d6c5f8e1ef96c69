"""Training draft heads: text that the target writes itself, its hidden states, losses, one recipe per family, the loop.

Everything but the data's writing needs torch. Networks are in `models/torch_executor/heads/`; drafting with them is in
`drafters/heads/`.
"""
