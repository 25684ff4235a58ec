"""Callbacks for trainers of other libraries. Each is imported only when it is used."""
