"""Proofs: the control logic of the engine with free inputs, for yosys and an SMT solver."""
