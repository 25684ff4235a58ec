import threading
import time

from attentropy.report.answers import Answers


def test_an_answer_is_made_once_for_each_state():
    answers, made = Answers(), []

    def make():
        made.append(1)
        return str(len(made)).encode()

    assert [answers.get("a", state, make) for state in ("1", "1", "2", "2")] == [
        b"1",
        b"1",
        b"2",
        b"2",
    ]


def test_memory_is_bounded_and_the_newest_stay():
    answers = Answers(room=100)
    for i in range(50):
        answers.get(str(i), "", lambda: bytes(30))
    assert list(answers._kept) == ["47", "48", "49"]
    answers.get("large", "", lambda: bytes(1000))
    assert list(answers._kept) == ["large"]


def test_many_clients_cost_as_much_as_one():
    answers, made = Answers(), []

    def make():
        made.append(1)
        time.sleep(0.05)
        return b"x"

    clients = [
        threading.Thread(target=answers.get, args=("a", "1", make), daemon=True) for _ in range(20)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(made) == 1
