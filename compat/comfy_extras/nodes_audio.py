"""Re-exports; see `nodes`."""

from nodes.audio import AudioAdjustVolume, EmptyAudio, JoinAudioChannels, SplitAudioChannels, TrimAudioDuration
from nodes.audio_mixing import AudioConcat, AudioEqualizer3Band, AudioMerge
from nodes.empty_latents import EmptyLatentAudio
from nodes.sound_files import LoadAudio, PreviewAudio, SaveAudio, SaveAudioMP3, SaveAudioOpus

__all__ = [
    "AudioAdjustVolume",
    "AudioConcat",
    "AudioEqualizer3Band",
    "AudioMerge",
    "EmptyAudio",
    "EmptyLatentAudio",
    "JoinAudioChannels",
    "LoadAudio",
    "PreviewAudio",
    "SaveAudio",
    "SaveAudioMP3",
    "SaveAudioOpus",
    "SplitAudioChannels",
    "TrimAudioDuration",
]
