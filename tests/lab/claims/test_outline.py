import re

from attentropy.lab.claims import CLAIMS, outline


def test_five_documents_with_their_titles():
    titles = [one.title for one in outline.documents()]
    assert titles[0] == "注意力和Softmax的两点有趣发现：鲁棒性和信息量"
    assert len(titles) == 5
    assert [one.key for one in outline.documents()] == ["000", "001", "002", "003", "004"]
    assert outline.title_of("004") == "第5章 注意力机制数学"
    assert outline.title_of("ID") is None


def test_numbered_sections_are_all_there():
    for key, last in (("000", 25), ("001", 30)):
        document = next(one for one in outline.documents() if one.key == key)
        numbers = [int(m[1]) for s in document.sections if (m := re.match(r"(\d+)\. ", s.title))]
        assert numbers == list(range(1, last + 1))
    chapter = outline.documents()[4]
    assert [s.title.split()[0] for s in chapter.sections] == [f"5.1.{i}" for i in range(1, 10)]


def test_every_claim_of_the_documents_quotes_a_sentence_of_its_document():
    for id_, claim in CLAIMS.items():
        found = outline.quoted(id_)
        if not claim.of_documents:
            assert found is None
            continue
        assert found is not None, id_
        assert found.document == outline.title_of(claim.source)
        assert re.search(r"[\u4e00-\u9fff]|\$", found.words), id_
        assert len(found.words) < 120, id_


def test_a_claim_about_a_section_is_quoted_from_it():
    for id_ in CLAIMS:
        number = re.match(r"00[01]-§(\d+)", id_)
        if number and id_ != "001-§30.4":  # which stands in the summary after section 30
            assert outline.quoted(id_).section.startswith(f"{number[1]}. "), id_


def test_formulas_have_two_dollar_signs():
    for one in outline.documents():
        for section in one.sections:
            for words in section.quotes.values():
                assert words.count("$") % 2 == 0, words


def test_the_way_back_names_every_section():
    there = {(d.title, s.title) for d in outline.documents() for s in d.sections}
    assert {place for places in outline.done_by().values() for place in places} == there
