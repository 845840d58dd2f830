"""join: one-sided batches, in any order and split, sent late or twice, become pairs."""
