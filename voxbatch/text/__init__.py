"""Functions between audio and text: the chunks of a recording, the transcript of its chunks, flags on a transcript."""
