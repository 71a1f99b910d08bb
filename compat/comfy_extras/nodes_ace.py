"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyAceStep1_5LatentAudio, EmptyAceStepLatentAudio

__all__ = ["EmptyAceStep1_5LatentAudio", "EmptyAceStepLatentAudio"]
