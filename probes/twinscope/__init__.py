"""TwinScope probes: what runs inside trainers and engines. Standard library only at import."""
