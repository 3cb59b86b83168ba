"""Find the recordings that a person names, and read lists of others: what makes lines for `manifest`."""
