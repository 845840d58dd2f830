"""The twin test before a run: one engine, one trainer's forward, the same tokens.

prompts → engine (samples and scores) → trainer (scores the same tokens) → cells → report. A cell is
one comparison of two ways to score the same tokens, measured and diagnosed by the service's path.
"""
