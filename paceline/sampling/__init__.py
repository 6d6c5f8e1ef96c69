"""Sampling and verification without models or caches: laws, randomness, token trees, warping, verification rules."""

from paceline.sampling.block import verify_block
from paceline.sampling.coupled import match_probability, verify_coupled, verify_sample_and_match
from paceline.sampling.law import GreedyLaw, Law
from paceline.sampling.randomness import ROOT, CounterRandomness, Randomness, fresh_seed
from paceline.sampling.rejection import verify_rejection_sampling
from paceline.sampling.rules import AUTO, RULES, Judge, Rule, Verifier, judge, resolve, rule_called
from paceline.sampling.tree import TokenTree, union
from paceline.sampling.verify import TargetLaws, Verdict, verify
from paceline.sampling.warp import Warper

__all__ = [
    "AUTO",
    "ROOT",
    "RULES",
    "CounterRandomness",
    "GreedyLaw",
    "Judge",
    "Law",
    "Randomness",
    "Rule",
    "TargetLaws",
    "TokenTree",
    "Verdict",
    "Verifier",
    "Warper",
    "fresh_seed",
    "judge",
    "match_probability",
    "resolve",
    "rule_called",
    "union",
    "verify",
    "verify_block",
    "verify_coupled",
    "verify_rejection_sampling",
    "verify_sample_and_match",
]
