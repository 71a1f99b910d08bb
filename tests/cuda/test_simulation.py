"""The simulated device is as strict as a real one."""

import gc

import pytest
import torch
import torch.nn.functional as F

from tests.cuda.simulation import DEVICE


def there(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(2, 3)]),
        lambda x: F.linear(x, torch.ones(4, 3)),
        lambda x: torch.ones(2, 3).add_(x),
        lambda x: torch.ones(2, 3) * x.sum(),
        lambda x: F.embedding(torch.ones(2, dtype=torch.int64), x),
    ],
)
def test_operands_of_both_devices_are_refused(cuda, mixed):
    with pytest.raises(RuntimeError, match="same device"):
        mixed(there(2, 3))


def test_numbers_and_indices_of_the_host_are_welcome(cuda):
    x = there(2, 3)
    assert (x * torch.tensor(2.0)).device == x[torch.tensor([1])].device == DEVICE


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, w: x @ w,
        lambda x, w: F.linear(x, w),
        lambda x, w: F.layer_norm(x, (3,), w[0]),
        lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]),
        lambda x, w: F.conv1d(x[None], w[:2, :2, None]),
    ],
)
def test_operands_of_two_dtypes_are_refused(cuda, mixed):
    with pytest.raises(RuntimeError, match=r"dtype|same|expected"):
        mixed(there(2, 3), there(3, 3, dtype=torch.float16))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0, 0]),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: bool((x > 0).all()),
        lambda x: torch.empty(2, 3).copy_(x),
        lambda x: x.to("cpu", torch.float16),
        lambda x: torch.nonzero(x),
    ],
)
def test_reading_is_counted(cuda, read):
    x = there(2, 3)
    assert not cuda.reads
    read(x)
    assert cuda.reads


def test_computing_is_not(cuda):
    x = there(2, 3)
    (x.half() @ x.half().T).softmax(-1).mul_(2)[:, :1].expand(2, 4).clone()
    torch.zeros_like(x).copy_(torch.ones(2, 3))
    assert not cuda.reads


def test_arrays_are_of_the_host(cuda):
    with pytest.raises(TypeError):
        there(2).numpy()


def test_memory_is_counted(cuda):
    x = there(1024, 1024)
    assert cuda.used == 4 << 20
    view = x[:10]
    del x
    gc.collect()
    assert cuda.used == 4 << 20, "a view holds all of it"
    del view
    gc.collect()
    assert cuda.used == 0 and cuda.peak == 4 << 20


def test_memory_ends(cuda):
    cuda.capacity = 1 << 20
    kept = there(200_000)
    for size in (300_000, 1 << 40):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            torch.empty(size, device=DEVICE)
    assert kept.device == DEVICE and cuda.used == 800_000


def test_streams_have_to_wait_for_each_other(cuda):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = there(3)
        done = stream.record_event()
        later = there(3)
    with pytest.raises(AssertionError, match="another stream"):
        x + 1
    torch.cuda.current_stream().wait_event(done)
    assert (x + 1).device == DEVICE
    with pytest.raises(AssertionError, match="another stream"):
        later + 1


def test_in_place_and_views_are_one_tensor(cuda):
    x = there(2, 3)
    before = x.cpu()
    x[0] += 1
    x.view(-1)[3:].zero_()
    assert torch.equal(x.cpu()[0], before[0] + 1) and x.cpu()[1].abs().sum() == 0
    host = torch.ones(3)
    moved = host.to(DEVICE)
    moved += 1
    assert host.sum() == 3, "a copy"
