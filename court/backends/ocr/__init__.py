"""Reading the text off a picture in a child process."""
