"""Pages that read: sign-in, the list of trials, a trial with its pictures."""
