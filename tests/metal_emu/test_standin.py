"""How arguments are bound: as torch.mps.compile_shader does, and stricter."""

from __future__ import annotations

import pytest
import torch

from metal_emu import compile_shader, counts, log
from metal_emu.cases import HEADER, kernel, numbers

PARAMETERS = """device float* x [[buffer(0)]], device const half* h [[buffer(1)]], constant int& n [[buffer(2)]],
    constant float& f [[buffer(3)]]"""
SCALED = kernel("x[i] = float(h[i]) * f + float(n);", parameters=PARAMETERS)
SIZES = dict(threads=64, group_size=32)


def arguments(**replaced: object) -> list[object]:
    return list({"x": numbers(), "h": numbers(dtype=torch.float16), "n": 3, "f": 0.5, **replaced}.values())


def echo(type_name: str) -> object:
    """The value of a constant parameter of that type, written to x[0]."""
    return compile_shader(kernel("x[i] = float(v);", parameters=f"device float* x [[buffer(0)]], constant {type_name}& v [[buffer(1)]]"))


def value(type_name: str, argument: object, **casts: object) -> float:
    x = torch.zeros(1)
    echo(type_name).k(x, argument, threads=1, group_size=1, **casts)
    return x.item()


def test_a_launch() -> None:
    x, h = numbers(), numbers(dtype=torch.float16)
    compile_shader(SCALED).k(x, h, 3, 0.5, **SIZES)
    assert torch.equal(x, h.float() / 2 + 3)


@pytest.mark.parametrize(
    ("replaced", "error", "message"),
    [
        (dict(x=numbers().double()), TypeError, "Metal has no torch.float64"),
        (dict(x=numbers(dtype=torch.float16)), TypeError, r"argument 0 \(device float\*\): a tensor of torch.float16"),
        (dict(h=numbers(dtype=torch.bfloat16)), TypeError, r"argument 1 \(device half\*\): a tensor of torch.bfloat16"),
        (dict(h=numbers(dtype=torch.uint8)), TypeError, "a tensor of torch.uint8"),
        (dict(n=torch.ones(1)), TypeError, r"argument 2 \(constant int&\): a tensor of torch.float32"),
        (dict(n=torch.ones(0, dtype=torch.int32)), ValueError, "needs 4 bytes, 0 are bound"),
        (dict(x=numbers(128)[::2]), ValueError, "not contiguous"),
        (dict(h=torch.ones(8, 8).half().T), ValueError, "not contiguous"),
        (dict(h=0.5), TypeError, "a Python value for a device pointer"),
        (dict(n=0.5), TypeError, "passed as torch.float32"),
        (dict(f=2), TypeError, "passed as torch.int64"),
        (dict(n=2**31), ValueError, "does not fit"),
        (dict(n="3"), RuntimeError, "Unsupported argument type"),
        (dict(n=[]), RuntimeError, "Empty list/tuple can not be an argument"),
        (dict(x=torch.empty(64, device="meta")), TypeError, "a tensor on meta"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, dict) else "",
)
def test_an_argument_is_refused(replaced: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compile_shader(SCALED).k(*arguments(**replaced), **SIZES)


def test_the_number_of_arguments_must_be_right() -> None:
    lib = compile_shader(SCALED)
    with pytest.raises(TypeError, match=r"unbound buffers \[3\], arguments that are no parameters \[\]"):
        lib.k(*arguments()[:3], **SIZES)
    with pytest.raises(TypeError, match=r"unbound buffers \[\], arguments that are no parameters \[4\]"):
        lib.k(*arguments(), 1, **SIZES)


def test_a_slot_between_the_parameters_can_not_be_bound() -> None:
    source = f"{HEADER}kernel void k(device float* x [[buffer(0)]], device float* y [[buffer(2)]]) {{ x[0] = y[0]; }}"
    with pytest.raises(TypeError, match=r"arguments that are no parameters \[1\]"):
        compile_shader(source).k(numbers(), numbers(), numbers(), threads=1)


def test_an_output_must_not_overlap() -> None:
    lib = compile_shader(kernel("x[i] = y[i];", parameters="device float* x [[buffer(0)]], device const float* y [[buffer(1)]]"))
    storage = numbers(128)
    with pytest.raises(ValueError, match="argument 0 is written to and overlaps argument 1"):
        lib.k(storage[:64], storage[63:127], **SIZES)
    lib.k(storage[:64], storage[64:], **SIZES)
    assert torch.equal(storage[:64], storage[64:])


def test_inputs_may_be_one_tensor() -> None:
    lib = compile_shader(kernel("x[i] = y[i] + z[i];", parameters="device float* x, device const float* y, device const float* z"))
    x, y = numbers(), numbers()
    lib.k(x, y, y, **SIZES)
    assert torch.equal(x, 2 * y)


@pytest.mark.parametrize(
    ("type_name", "argument", "expected"),
    [("int", -5, -5), ("uint", 2**32 - 1, 2**32), ("long", 2**40, 2**40), ("ulong", 7, 7), ("short", -3, -3), ("uchar", 255, 255)]
    + [("bool", True, 1), ("bool", False, 0), ("float", 0.25, 0.25), ("int", True, 1), ("int", [4, 5], 4), ("float", [0.5, 1], 0.5)]
    + [("long", [4, 5], 4), ("float", torch.tensor(2.5), 2.5), ("int", torch.tensor([9], dtype=torch.int32), 9)],
)
def test_values(type_name: str, argument: object, expected: float) -> None:
    casts = dict(arg_casts={1: "int32"}) if type_name == "int" and isinstance(argument, list) else {}
    assert value(type_name, argument, **casts) == expected


@pytest.mark.parametrize(
    ("type_name", "argument", "casts", "error", "message"),
    [
        ("uint", -1, None, ValueError, "does not fit"),
        ("uchar", 256, None, ValueError, "does not fit"),
        ("half", 0.5, None, TypeError, "passed as torch.float32; see arg_casts"),
        ("int", [1, 2], None, TypeError, "integers passed as 8 bytes each; see arg_casts"),
        ("long", 1, "int32", TypeError, "integers passed as 4 bytes each"),
        ("int", 1, "int64", RuntimeError, "Unsupported cast instruction int64"),
        ("int", 1, 7, RuntimeError, "Unexpected caster arg type int"),
        ("int", 1, "fp16", TypeError, "passed as torch.float16"),
    ],
)
def test_values_refused(type_name: str, argument: object, casts: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        value(type_name, argument, arg_casts=casts)


def test_casts() -> None:
    assert value("half", 0.5, arg_casts="fp16") == 0.5
    assert value("bfloat", 1.00390625, arg_casts={1: "bf16"}) == 1.0
    assert value("short", -3, arg_casts={1: "int16"}) == -3
    x = torch.zeros(1)
    lib = compile_shader(kernel("x[i] = float(v.z);", parameters="device float* x [[buffer(0)]], constant uint3& v [[buffer(1)]]"))
    lib.k(x, [1, 2, 3, 0], threads=1, group_size=1, arg_casts={1: "int32"})
    assert x.item() == 3
    with pytest.raises(ValueError, match="needs 16 bytes, 12 are bound"):
        lib.k(x, [1, 2, 3], threads=1, group_size=1, arg_casts={1: "int32"})


def test_bytes_are_read_as_any_unsigned_integers() -> None:
    parameters = "device uint* x [[buffer(0)]], device const uint4* y [[buffer(1)]]"
    x, packed = torch.zeros(1, dtype=torch.int32), torch.arange(16, dtype=torch.uint8)
    compile_shader(kernel("x[i] = y[i].w;", parameters=parameters)).k(x, packed, threads=1, group_size=1)
    assert x.item() == 0x0F0E0D0C


@pytest.mark.parametrize(
    ("threads", "group_size", "error", "message"),
    [
        (64, 512, ValueError, r"threadgroup size 512 exceeds 256 limit \(none declared\)"),
        ((64, 1), 32, RuntimeError, "different ranks"),
        ((1, 1, 1, 1), (1, 1, 1, 1), RuntimeError, "vec.size"),
        (0, 32, ValueError, "empty grid"),
        (64, 0, ValueError, "empty grid"),
    ],
)
def test_sizes_refused(threads: object, group_size: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compile_shader(SCALED).k(*arguments(), threads=threads, group_size=group_size)


def test_a_declared_limit_is_the_limit() -> None:
    lib = compile_shader(SCALED.replace("\nkernel void", "\n[[max_total_threads_per_threadgroup(512)]] kernel void"))
    assert lib.k.max_threads_per_threadgroup == 512 and lib.k.thread_execution_width == 32
    lib.k(*arguments(x=numbers(512), h=torch.ones(512).half()), threads=512, group_size=512)
    with pytest.raises(ValueError, match=r"threadgroup size 1024 exceeds 512 limit \(declared\)"):
        lib.k(*arguments(), threads=1024, group_size=1024)


def test_threads_default_to_the_first_tensor() -> None:
    x = torch.zeros(40)
    compile_shader(kernel("x[i] = 1;")).k(x)
    assert (x == 1).all()
    with pytest.raises(RuntimeError, match="number of threads is undefined"):
        compile_shader(f"{HEADER}kernel void k(constant int& n [[buffer(0)]]) {{}}").k(1)


def test_edge_groups_are_partial() -> None:
    source = kernel("x[i] = float(size);").replace("uint lane [[", "uint size [[threads_per_threadgroup]], uint lane [[")
    x = torch.zeros(80)
    compile_shader(source).k(x, threads=80, group_size=64)
    assert x.tolist() == [64] * 64 + [16] * 16


def test_unknown_kernels_are_a_runtime_error() -> None:
    lib = compile_shader(SCALED)
    with pytest.raises(RuntimeError, match="Failed to create function state object for: nothing"):
        lib.nothing  # noqa: B018
    with pytest.raises(RuntimeError):
        hasattr(lib, "nothing")
    assert dir(lib) == ["k"]


def test_the_log_and_the_counts() -> None:
    log.clear()
    compile_shader(SCALED).k(*arguments(), threads=(64, 1, 1), group_size=(32, 1, 1))
    assert log == [("k", (64, 1, 1), (32, 1, 1))]
    assert counts["device_bytes_loaded"] == 64 * 2 and counts["constant_bytes_loaded"] == 64 * (4 + 4)
    assert counts["device_bytes_stored"] == 64 * 4


def test_an_order_must_be_known() -> None:
    with pytest.raises(ValueError, match="order must be one of forward, reverse, shuffle, got 'random'"):
        compile_shader(SCALED, order="random")


@pytest.mark.parametrize("check", [True, False])
def test_orders_change_who_comes_first(check: bool) -> None:
    body = "x[i] = float(atomic_fetch_add_explicit(n, 1u, memory_order_relaxed));"
    source = kernel(body, parameters="device float* x [[buffer(0)]], device atomic_uint* n [[buffer(1)]]")

    def turns(order: str, seed: int = 0) -> list[float]:
        x = torch.zeros(128)
        compile_shader(source, check=check, order=order, seed=seed).k(x, torch.zeros(1, dtype=torch.uint32), threads=128, group_size=64)
        return x.tolist()

    assert turns("forward") == list(range(128))
    assert turns("reverse") == list(range(127, -1, -1))
    assert sorted(turns("shuffle")) == list(range(128)) and turns("shuffle") == turns("shuffle") != turns("shuffle", seed=1)
