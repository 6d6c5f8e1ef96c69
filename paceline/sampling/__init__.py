"""Sampling and verification without models or caches: laws, randomness, token trees, warping, verification rules."""

from paceline.sampling.block import verify_block
from paceline.sampling.coupled import match_probability, verify_coupled, verify_sample_and_match
from paceline.sampling.law import GreedyLaw, Law
from paceline.sampling.lossy import LOSSY, may_change
from paceline.sampling.randomness import ROOT, CounterRandomness, Randomness, fresh_seed
from paceline.sampling.rejection import verify_rejection_sampling
from paceline.sampling.rules import AUTO, RULES, Judge, Verifier, is_lossy, judge, resolve
from paceline.sampling.tree import TokenTree, union
from paceline.sampling.verify import TargetLaws, Verdict, verify
from paceline.sampling.warp import Warper

__all__ = [
    "AUTO",
    "LOSSY",
    "ROOT",
    "RULES",
    "CounterRandomness",
    "GreedyLaw",
    "Judge",
    "Law",
    "Randomness",
    "TargetLaws",
    "TokenTree",
    "Verdict",
    "Verifier",
    "Warper",
    "fresh_seed",
    "is_lossy",
    "judge",
    "match_probability",
    "may_change",
    "resolve",
    "union",
    "verify",
    "verify_block",
    "verify_coupled",
    "verify_rejection_sampling",
    "verify_sample_and_match",
]
