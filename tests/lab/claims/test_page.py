import pytest

from attentropy.core.language.phrases import phrases
from attentropy.lab.claims import CLAIMS
from attentropy.lab.claims.page import numbers_text, render
from attentropy.lab.claims.registry import Claim, holds_if


def test_numbers_are_short():
    text = numbers_text({"a": 1 / 3, "gap": 3e-17, "zero": -0.0, "big": 1e12, "none": float("inf")})
    assert text == "a=0.3333, gap=~0, zero=0, big=1e+12, none=inf"


def test_page():
    one = Claim("ID-1", "a|b * c", "holds", "x_1", lambda: holds_if(True, n=2))
    page = render([(one, one.measure())])
    assert "0 statements of the documents:" in page
    assert "The 1 identities of this library at the end are not counted." in page
    assert "## Identities" in page
    assert "| ID-1 | a\\|b \\* c | - | holds | x\\_1 | n=2 |" in page
    assert "## 000" not in page


def test_a_statement_of_a_document_stands_beside_its_sentence():
    one = Claim("000-§17b", "moduli", "cond", "c", lambda: holds_if(True, n=2))
    page = render([(one, one.measure())])
    assert "## 000: 《注意力和Softmax的两点有趣发现：鲁棒性和信息量》" in page
    # bars are written out: one would end the cell
    assert "| “其他特征值$\\vert \\lambda_i\\vert  < 1$” (17. 自注意力的谱分析) |" in page


def test_the_chinese_page_quotes_and_corrects_in_chinese():
    one = CLAIMS["001-(61)"]
    page = render([(one, one.measure())], "zh")
    assert "| 编号 | 原句 | 判定 | 更正，或更精确的说法 | 测得 |" in page
    assert "不成立" in page
    assert "方向反了" in page
    assert "文档中的论断 1 条" in page
    own = (
        CLAIMS["REM-1"]
        if "REM-1" in CLAIMS
        else next(c for c in CLAIMS.values() if not c.of_documents)
    )
    assert own.id in render([(own, own.measure())], "zh")


@pytest.mark.slow
def test_every_correction_has_its_chinese():
    known = phrases("zh").known
    assert [c.id for c in CLAIMS.values() if known(c.correction) is None] == []
