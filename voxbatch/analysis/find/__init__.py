"""`voxbatch find`: where something was said in the recordings of an OUT.

`index` keeps a full-text index of the transcripts, `search` finds the places in it, and `command` prints them.
"""
