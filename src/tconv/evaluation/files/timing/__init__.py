"""The times of two files, as a program calls them and in inference."""
