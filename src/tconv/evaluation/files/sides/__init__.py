"""Both files of a judgement: what they are given, the process of each, and what their calls show."""
