"""Diarisation on a CPU: find who talks when, by two small networks."""

from voxbatch.speakers.diarizer import Diarizer
from voxbatch.speakers.voices import Voice
from voxbatch.speakers.weights import SpeakerWeights, find_weights

__all__ = ["Diarizer", "SpeakerWeights", "Voice", "find_weights"]
