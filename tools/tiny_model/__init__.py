"""The project's own small text-to-image model: its data, its training, its evaluation."""
