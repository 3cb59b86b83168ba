"""Engine for transducers and CTC models of the Parakeet family."""
