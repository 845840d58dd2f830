"""Synthesis, placement and routing with open tools; a script for Vivado, unrun."""
