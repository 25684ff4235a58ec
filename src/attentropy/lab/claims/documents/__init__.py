"""The statements of the source documents, one check each."""
