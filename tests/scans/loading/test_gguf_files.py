"""Files are opened once while somebody reads, and gguf is as it was afterwards."""

import pytest

from attentropy.scans.loading.gguf_files import REPEATED, read_once

gguf = pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    return str(path)


def test_a_file_is_opened_once_and_nothing_stays(file):
    own = [getattr(gguf, name) for name in REPEATED]
    with read_once():
        first = gguf.GGUFReader(file)
        assert gguf.GGUFReader(file) is first
        assert first.fields["llama.context_length"].contents() == 64
    assert [getattr(gguf, name) for name in REPEATED] == own
    assert gguf.GGUFReader(file) is not first


def test_names_are_those_that_gguf_gives():
    arch = gguf.MODEL_ARCH.LLAMA
    with read_once():
        found = gguf.get_tensor_name_map(arch, 3)
        assert gguf.get_tensor_name_map(arch, 3) is found
    assert found.mapping == gguf.get_tensor_name_map(arch, 3).mapping


def test_an_exception_restores_it():
    own = gguf.GGUFReader
    with pytest.raises(OSError, match="nowhere"), read_once():
        gguf.GGUFReader("nowhere.gguf")
    assert gguf.GGUFReader is own
