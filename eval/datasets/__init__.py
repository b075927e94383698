"""The field's data sets: what is known of them, what lies in a directory, and what their labels mean."""
