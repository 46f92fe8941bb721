"""Both files of a judgement: their inputs, the process of each, and the side effects of their calls."""
