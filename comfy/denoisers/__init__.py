"""Diffusion models as sampling sees them, one class per family: what of the conditioning reaches which network."""
