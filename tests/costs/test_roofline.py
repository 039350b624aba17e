"""A device by its data sheet: more work never takes less time, a better device never more, and none beats its sheet."""

from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.clusters.catalogue import all_devices, find_device
from paceline.costs.device import step_cost
from paceline.costs.roofline import WIDTHS, Roofline, fullness
from paceline.costs.trace.operator import Convolution, Operator, OperatorKind, Product, Shape
from paceline.costs.trace.trace import Trace, trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of

KINDS: tuple[OperatorKind, ...] = (
    *("convolution", "product", "attention", "norm", "pool"),
    *("elementwise", "reduction", "embedding", "copy", "optimizer"),
)


def operator(kind: OperatorKind, flops: float, size: int, shape: Shape = None) -> Operator:
    return Operator(
        name="op",
        kind=kind,
        phase="forward",
        module="",
        flops=flops,
        read=size,
        written=size,
        elements=1,
        shape=shape,
    )


def product(side: int) -> Operator:
    return operator("product", 2.0 * side**3, 8 * side**2, Product(batch=1, m=side, n=side, k=side))


def depthwise(groups: int) -> Operator:
    shape = Convolution(
        batch=32,
        inputs=256,
        outputs=256,
        size=(14, 14),
        out=(14, 14),
        kernel=(3, 3),
        groups=groups,
    )
    return operator("convolution", 2.0 * 32 * 14**2 * 256 * 256 // groups * 9, 4 * 32 * 256 * 14**2, shape)


sheets = st.sampled_from(list(all_devices().values()))
formats = st.sampled_from(list(WIDTHS))
operators = st.builds(
    operator,
    st.sampled_from(KINDS),
    st.floats(0, 1e15),
    st.integers(0, 10**12),
    st.none()
    | st.builds(
        Product, batch=st.just(1), m=st.integers(1, 4096), n=st.integers(1, 64), k=st.integers(1, 64)
    ),
)


@given(sheet=sheets, numbers=formats, one=operators, more=st.floats(1, 100))
def test_time_grows_with_work_and_shrinks_with_the_device(sheet, numbers, one, more) -> None:
    there = numbers in ("torch", "fp32", *sheet.tensor_flops)
    device = Roofline(sheet=sheet, format=numbers if there else "torch")
    seconds = device.seconds(one)
    assert seconds >= one.flops / max(sheet.flops, *sheet.tensor_flops.values(), 0)
    assert seconds >= one.flops / device.peak(one)
    assert seconds >= (one.read + one.written) / 2 / sheet.bandwidth
    assert device.seconds(replace(one, flops=one.flops * more)) >= seconds
    assert device.seconds(replace(one, read=round(one.read * more))) >= seconds
    tensor = {name: peak * more for name, peak in sheet.tensor_flops.items()}
    for better in (
        replace(sheet, flops=sheet.flops * more, tensor_flops=tensor),
        replace(sheet, bandwidth=sheet.bandwidth * more),
    ):
        assert replace(device, sheet=better).seconds(one) <= seconds


def test_large_products_reach_most_of_the_peak_and_small_ones_wait_for_the_overhead() -> None:
    a100 = Roofline(sheet=find_device("a100"), format="bf16")
    rate = product(8192).flops / a100.seconds(product(8192))
    assert 0.7 * 312e12 < rate < 0.8 * 312e12
    assert a100.seconds(product(16)) < 1.1 * a100.overhead


def test_published_training_rates_are_met_within_the_stated_spread() -> None:
    """Images a second of ResNet-50 by NVIDIA's DeepLearningExamples, PyTorch 21.03, one GPU."""
    published = {
        ("a100-80gb", "tf32"): 938,
        ("a100-80gb", "fp16"): 2470,
        ("v100", "fp32"): 367,
        ("v100", "fp16"): 1200,
    }
    step = trace(traceable_of("resnet50"), 128)
    for (device, numbers), rate in published.items():
        cost = step_cost(step, Roofline(sheet=find_device(device), format=numbers))
        assert abs(log(step.samples / cost.step.compute / rate)) < log(1.5), (device, numbers)


def test_convolutions_of_narrow_groups_are_slower_a_operation() -> None:
    device = Roofline(sheet=find_device("epyc-7763"), threads=1)
    rates = [depthwise(groups).flops / device.seconds(depthwise(groups)) for groups in (1, 32, 256)]
    assert rates[0] > 2 * rates[1] > 4 * rates[2]


def test_formats_are_used_where_torch_uses_them() -> None:
    sheet = find_device("a100")
    dense, wide = product(4096), depthwise(1)
    usual = Roofline(sheet=sheet)
    assert (usual.peak(dense), usual.peak(wide)) == (19.5e12, 156e12)
    assert Roofline(sheet=sheet, format="tf32").peak(dense) == 156e12
    assert usual.peak(depthwise(256)) == 19.5e12
    copied = operator("copy", 0, 10**9)
    half = Roofline(sheet=sheet, format="bf16").seconds(copied)
    assert usual.seconds(copied) == pytest.approx(2 * half, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_tensors_are_computed_in_their_own_format(dtype) -> None:
    """Else a module in bfloat16 would be priced as one in float32, 11 times as slow as it is."""
    sheet = find_device("a100")
    usual, half = Roofline(sheet=sheet), Roofline(sheet=sheet, format="bf16")
    wide = product(4096)
    narrow = replace(wide, dtype=dtype, read=wide.read // 2, written=wide.written // 2)
    assert usual.peak(narrow) == 312e12
    assert usual.seconds(narrow) == pytest.approx(half.seconds(wide))
    assert half.seconds(narrow) == usual.seconds(narrow), "its bytes are counted as they are"
    assert usual.peak(replace(product(4), dtype=dtype)) == 19.5e12, "too small for matrix units"


def traced_in(*dtypes: torch.dtype) -> Trace:
    """A step of one product in each."""
    products = tuple(replace(product(64), module=f"at{place}", dtype=one) for place, one in enumerate(dtypes))
    step = trace(traceable_of("mlp:hidden=64"), 8)
    return replace(step, name="net", forward=products, backward=())


@pytest.mark.parametrize(
    ("device", "numbers", "dtypes", "says"),
    [
        (
            *("a100", "torch", (torch.float64,)),
            r"no float64 peak of a100, and module 'at0' of 'net' computes in it; convert the model with \.float\(\), "
            "or train it on one worker and give that run as times",
        ),
        ("epyc-7763", "torch", (torch.float64,), "no float64 peak of epyc-7763"),
        ("a100", "bf16", (torch.float32, torch.float64), "no float64 peak of a100"),
        (
            *("t4", "torch", (torch.float32, torch.bfloat16)),
            "no bfloat16 peak of t4.* or choose a device that has matrix units for it, such as a10$",
        ),
        ("k40", "torch", (torch.float16,), "no float16 peak of k40.* such as v100$"),
        (
            *("a100", "fp32", (torch.bfloat16,)),
            "precision fp32 does not go with 'net', whose own dtype is bfloat16; leave the precision out",
        ),
        ("a100", "bf16", (torch.float16,), "precision bf16 does not .* own dtype is float16"),
    ],
)
def test_a_step_in_a_dtype_that_the_sheet_does_not_know_is_refused(device, numbers, dtypes, says) -> None:
    """Else float64 would be priced at the peak of float32."""
    with pytest.raises(UsageError, match=says):
        Roofline(sheet=find_device(device), format=numbers).within(traced_in(*dtypes))


@pytest.mark.parametrize(
    ("numbers", "dtypes"),
    [
        ("bf16", (torch.bfloat16,)),
        ("torch", (torch.float16, torch.float32)),
        ("tf32", (torch.bfloat16, torch.float32)),
    ],
)
def test_a_format_goes_with_tensors_of_its_own_and_with_float32(numbers, dtypes) -> None:
    device = Roofline(sheet=find_device("a100"), format=numbers)
    assert device.within(traced_in(*dtypes)) == device


def test_a_worker_has_the_cores_of_its_threads() -> None:
    sheet = find_device("epyc-7763")
    alone, all_of_it = Roofline(sheet=sheet, threads=1), Roofline(sheet=sheet)
    assert all_of_it.peak(product(64)) == pytest.approx(64 * alone.peak(product(64)))
    assert all_of_it.bandwidth == pytest.approx(16 * alone.bandwidth) == sheet.bandwidth


def test_a_data_sheet_is_trusted_within_a_factor_of_one_and_a_half() -> None:
    assert Roofline(sheet=find_device("t4")).spread == log(1.5)


@pytest.mark.parametrize(
    ("device", "settings", "says"),
    [
        ("t4", {"format": "bf16"}, "t4 has no matrix units for bf16; choose one of: torch, fp32, fp16"),
        ("t4", {"format": "fp61"}, "unknown number format 'fp61'; did you mean 'fp16'"),
        ("ryzen-7950x", {"threads": 17}, "17 threads do not fit ryzen-7950x: it must be 1 to 16"),
        ("a100", {"threads": 2}, "2 threads do not fit a100: it is no CPU"),
    ],
)
def test_what_a_device_does_not_have_is_refused(device, settings, says) -> None:
    with pytest.raises(UsageError, match=says):
        Roofline(sheet=find_device(device), **settings)


def test_an_empty_product_takes_its_overhead() -> None:
    """Else a layer of no features would end in a division by zero."""
    assert fullness(Product(batch=1, m=4, n=0, k=8)) > 0
