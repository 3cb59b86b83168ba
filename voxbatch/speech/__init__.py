"""Texts to speak and the sound of them: cut a text into pieces, and join the speech of the pieces to a recording.

The package knows no engine and no file. `works.speak` reads the texts, and gives the pieces to an engine.
"""
