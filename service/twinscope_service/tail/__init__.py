"""Frameworks' own dumps as a data source: nothing is added to the trainer.

find (which steps of a folder are complete) → read (a step's files, as arguments of `Probe.pair`)
→ send, in step order, each step once.
"""
