"""Take in what a person has corrected in the outputs of a run.

    edits      which files somebody has changed
    passages   the text of a subtitle or of plain text, with its times and speakers
    draft      the words of the corrected text: those that are the same keep their times
    times      the times of the others, found in the audio
    command    `voxbatch correct`

The corrections become entries of OUT's log, see the module `output.corrections`.
"""
