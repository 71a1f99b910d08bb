"""Tensors and weights: models, samplers, and what stays on the device. Knows nothing of HTTP, queues or nodes."""
