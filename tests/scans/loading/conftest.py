"""A small llama on disk, and no network."""

import socket

import pytest
import torch


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    path = tmp_path_factory.mktemp("models") / "llama"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def copy(llama, tmp_path):
    import shutil

    return shutil.copytree(llama, tmp_path / "copy")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
