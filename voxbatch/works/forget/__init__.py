"""Erase items from an OUT, because somebody has asked to be forgotten.

    traces     what OUT has of the items: parts, files, names in the settings
    erasing    the erasure, which the same command continues after a kill
    command    `voxbatch forget`

A forgotten item stays in the log as a failure of the kind "forgotten", with nothing but the hash of its id, by which a
further run does not transcribe it again. It is the only command that writes parts again.
"""
