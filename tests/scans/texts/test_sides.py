from attentropy.scans.texts.sides import Picture, Side


def test_sides_and_pictures_are_plain_values():
    assert Side("text", 0, 3) == Side(name="text", start=0, count=3)
    assert Picture(b"", 2, 3, 1).columns == 3
