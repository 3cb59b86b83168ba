"""Diarisation: find who talks when, by two small networks, on a CPU or beside vLLM on its GPU."""

from voxbatch.speakers.diarizer import Diarizer
from voxbatch.speakers.voices import Voice
from voxbatch.speakers.weights import SpeakerWeights, find_weights

__all__ = ["Diarizer", "SpeakerWeights", "Voice", "find_weights"]
