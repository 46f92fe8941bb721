"""What runs in the process of one file, at the judge's word."""
