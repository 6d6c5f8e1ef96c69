"""Learning from what is served: an opt-in ring of texts and hidden states, which training goes on from (OSD, TIDE).

Nothing is kept unless it is asked for, and what is kept never leaves its folder. Liu et al. 2024 (OSD, 2310.07177);
TIDE (2602.05145), which keeps the states of serving passes so that none is needed for training.
"""
