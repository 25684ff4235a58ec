"""The loss of every token of a text: by position, paired before and after, and why it rises."""
