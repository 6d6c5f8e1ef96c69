"""Benchmarks, audits, advice and searches: costs of passes and the value of drafters."""
