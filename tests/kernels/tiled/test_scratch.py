"""Scratch memory belongs to a thread, a name and a dtype."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attentropy.kernels.tiled import scratch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_of_huge_pages_or_without(dtype, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError

    size = (1 << 20) + 3
    found = [scratch._memory(size, dtype=dtype)]
    monkeypatch.setattr(scratch.mmap, "mmap", refused)
    found.append(scratch._memory(size, dtype=dtype))
    for x in found:
        assert (len(x), x.dtype) == (size, dtype)
        assert x.fill_(2).sum() == 2 * size


def test_memory_is_kept_and_grows():
    like = torch.zeros(1)
    one = scratch.scratch("kept", 100, like=like)
    assert scratch.scratch("kept", 50, like=like).data_ptr() == one.data_ptr()
    assert scratch.scratch("other", 50, like=like).data_ptr() != one.data_ptr()
    assert scratch.scratch("kept", 50, like=like.double()).dtype == torch.float64
    assert len(scratch.scratch("kept", 10**6, like=like)) == 10**6


def test_threads_do_not_share_it():
    like = torch.zeros(1)
    mine = scratch.scratch("thread", 100, like=like).data_ptr()
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(lambda: scratch.scratch("thread", 100, like=like).data_ptr()).result()
    assert theirs != mine


def test_memory_made_in_inference_mode_serves_outside_of_it():
    with torch.inference_mode():
        made = scratch.scratch("inference", 10, like=torch.zeros(1))
    assert not made.is_inference()


def test_other_tensors_have_memory_of_their_own():
    like = torch.zeros(1, device="meta")
    assert scratch.scratch("meta", 7, like=like).is_meta
    parameter = torch.nn.Parameter(torch.zeros(1))
    one, two = (scratch.scratch("parameter", 7, like=parameter) for _ in range(2))
    assert one.data_ptr() != two.data_ptr()
