"""Lines of the command that are written for people to type and for processes to run: the only ones below cli/."""
