"""Who started this process, and what it wants to hear of how it ended: `tasks` (which task of how many), `sagemaker`
(its files). Reads the environment and these files, and starts nothing.
"""
