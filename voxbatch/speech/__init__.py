"""Texts to speak and the sound of them: cut a text into pieces, and join the speech of the pieces to a recording.

The package knows no engine and no file. `manifest.texts` reads the texts, and `runner.speaking` gives the pieces to an
engine.
"""
