from attentropy.training.ringing import Ringing


def told(*samples, calm=10):
    ringing = Ringing(calm)
    return ["".join(sorted(ringing.news(heads))) for heads in samples]


def test_a_head_is_told_of_once():
    assert told("a", "a", "a") == ["a", "", ""]
    assert told("", "ab", "b", "ab") == ["", "ab", "", ""]


def test_a_head_that_flickers_is_told_of_once():
    assert told("a", "", "a", "", "", "a") == ["a", "", "", "", "", ""]


def test_a_head_that_recovered_is_told_of_again():
    assert told("a", "", "", "a", calm=2) == ["a", "", "", "a"]
    assert told("a", "", "a", "", "a", calm=2) == ["a", "", "", "", ""]


def test_a_head_at_the_edge_is_told_of_ever_less():
    quiet = [""] * 30
    news = told(*(["a", *quiet] * 40), calm=10)
    assert [i // 31 for i, one in enumerate(news) if one] == [0, 1, 2]
    assert told("a", *[""] * 10, "a", *[""] * 19, "a", *[""] * 20, "a").count("a") == 3


def test_one_event_that_spreads_gives_few_alerts():
    heads = [chr(ord("a") + i) for i in range(14)]
    news = told(*("".join(heads[: i + 1]) for i in range(14)))
    assert [one for one in news if one] == ["a", "b", "cd", "efgh"]


def test_two_events_are_told_of_apart():
    assert told("a", "", "", "b", calm=2) == ["a", "", "", "b"]
