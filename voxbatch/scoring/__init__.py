"""Score transcripts against references: normalise by language, count errors, add up the corpus.

    counts = count_errors("the cat sat", "the cat sat down", "en")      # ErrorCounts(0, 1, 0, 3)
    score = CorpusScore()
    score.add("en", counts)
    score.to_dict()["wer"]                                               # 0.333333

Nothing here knows a manifest or OUT, and only `calibration`, `leaderboard` and `replacements` read files: their own. A
run without references imports only `units` and `records`.
"""
