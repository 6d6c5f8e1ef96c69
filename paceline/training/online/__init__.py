"""Training on served requests: an opt-in ring buffer of texts and hidden states on disk (OSD, TIDE).

Nothing is kept unless it is asked for, and the kept files never leave their folder. OSD: Liu et al. 2024, arXiv
2310.07177. TIDE, arXiv 2602.05145, keeps the states of serving passes so that training needs no passes of the target.
"""
