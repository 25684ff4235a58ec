from attentropy.models.record.tables import Printed


def test_a_table_is_printed_whole_however_wide_it_is():
    table = Printed("name", *(f"column {i}" for i in range(30)))
    table.add_row("layer", *("x" * 12 for _ in range(30)))
    text = str(table)
    assert text.count("x" * 12) == 30
    assert all(line == line.rstrip() for line in text.splitlines())
