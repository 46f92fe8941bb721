"""The code that runs in the process of one file and answers the judge."""
