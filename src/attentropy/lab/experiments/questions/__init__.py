"""Open questions of the source documents, each as a small experiment."""
