"""The transducers (Parakeet and its family): what their engines share."""
