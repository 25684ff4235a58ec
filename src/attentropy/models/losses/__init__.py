"""The loss of every token of a text: by position, before and after a change, and why it rises."""
