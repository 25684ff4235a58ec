"""Sentences in the language of their reader: English is written, Chinese is looked up."""
