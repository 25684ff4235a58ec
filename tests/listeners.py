"""A listener that keeps what it hears."""

from attentropy.models.progress import Listener


class Heard(Listener):
    def __init__(self):
        self.stages, self.total, self.done, self.said, self.steps = [], 0, 0, [], []
        self.possible = 0, ""

    def stage(self, text):
        self.stages.append(text)

    def begin(self, total):
        self.total = total

    def more(self, work):
        self.total += work

    def perhaps(self, work, condition):
        self.possible = work, condition

    def advance(self, work):
        self.done += work
        self.steps.append(work)

    def say(self, text):
        self.said.append(text)
