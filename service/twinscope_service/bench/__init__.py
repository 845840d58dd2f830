"""Benchmarks: what is measured, beside what others do."""
