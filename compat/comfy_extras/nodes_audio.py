"""Re-exports; see `nodes`."""

from nodes.audio import AudioAdjustVolume, EmptyAudio, JoinAudioChannels, SplitAudioChannels, TrimAudioDuration
from nodes.empty_latents import EmptyLatentAudio

__all__ = [
    "AudioAdjustVolume",
    "EmptyAudio",
    "EmptyLatentAudio",
    "JoinAudioChannels",
    "SplitAudioChannels",
    "TrimAudioDuration",
]
