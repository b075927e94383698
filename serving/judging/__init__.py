"""From a request to the trial that answers it."""
