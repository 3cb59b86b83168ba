"""Child processes: start and end them, choose their environment, notice those that hang; and standard streams."""
