import math

import pytest
import torch
from _breakdown import count_bytes, measure_part
from _step_parts import BACKWARD_FLOPS, Call, Part, make_parts
from _timing import DeviceTimer, Roofline, measure_copy_rate
from _training_tables import BREAKDOWN_HEADERS, breakdown_rows
from tiny_model import random_batch, tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("objective", ["w2v", "cmsc", "w2v_cmsc"])
def test_flops_of_the_parts_add_up_to_the_step(objective: str) -> None:
    model = tiny_model(objective)
    segments, patient = random_batch(num_pairs=3)
    parts = make_parts(model, segments, patient)
    flops = (1 + BACKWARD_FLOPS) * sum(part.flops for part in parts if part.part_of is None)
    assert math.isclose(flops, 6 * model.flops_per_segment(segments.shape[-1]), rel_tol=1e-9)
    assert all(part.flops >= 0 for part in parts)


def test_parts_include_every_weight_once() -> None:
    model = tiny_model("w2v_cmsc")
    parts = make_parts(model, *random_batch(num_pairs=2))
    sizes = sum(weight.numel() for part in parts if part.part_of is None for call in part.calls for weight in call.weights)
    assert sizes == sum(weight.numel() for weight in model.parameters())


def test_every_weight_of_a_part_receives_a_gradient() -> None:
    for part in make_parts(tiny_model("w2v_cmsc"), *random_batch(num_pairs=2)):
        for call in part.calls:
            outputs = call.run(*call.inputs)
            ends = [x for x in (outputs if isinstance(outputs, tuple) else [outputs]) if torch.is_tensor(x) and x.requires_grad]
            if not ends:
                assert part.name == "random numbers"
                continue
            gradients = torch.autograd.grad(ends, call.weights, [torch.ones_like(x) for x in ends], allow_unused=True)
            assert all(gradient is not None for gradient in gradients), part.name


def test_a_part_is_measured_forward_and_backward() -> None:
    part = make_parts(tiny_model("w2v_cmsc"), *random_batch(num_pairs=2))[1]
    cost = measure_part(part, CPU, 2, compiled=False)
    assert cost.backward.flops == BACKWARD_FLOPS * cost.forward.flops > 0
    assert cost.forward.seconds > 0
    assert cost.backward.seconds > 0


def test_bytes_of_a_matrix_product_count_each_tensor_once() -> None:
    weight = torch.nn.Parameter(torch.randn(5, 7))
    x = torch.randn(11, 7, requires_grad=True)
    forward, backward = count_bytes(Call(lambda values: values @ weight.T, (x,), (weight,)))
    inputs, weights, outputs = 4 * 11 * 7, 4 * 5 * 7, 4 * 11 * 5
    assert forward == inputs + weights + outputs  # the saved tensors are input and weight themselves
    assert backward == outputs + (inputs + weights) + (inputs + weights)


def test_bytes_include_saved_intermediate_tensors() -> None:
    x = torch.randn(1000, requires_grad=True)
    forward, backward = count_bytes(Call(lambda values: torch.tanh(values).exp(), (x,)))
    assert forward == 4 * 3 * 1000  # x, the saved tanh, and the exp, which is saved too
    assert backward == 4 * (1000 + 2 * 1000 + 1000)


def test_a_part_without_gradient_has_no_backward_pass() -> None:
    cost = measure_part(Part("draws", [Call(lambda: torch.rand(10))]), CPU, 1, compiled=False)
    assert cost.forward.bytes == 40
    assert (cost.backward.bytes, cost.backward.seconds) == (0, 0)


def test_the_limit_is_the_larger_of_arithmetic_and_traffic() -> None:
    roofline = Roofline(flops_per_second=10.0, bytes_per_second=5.0)
    assert roofline.seconds(20, 5) == 2
    assert roofline.seconds(20, 50) == 10


def test_the_sum_excludes_rows_that_are_part_of_others() -> None:
    passes = {"flops": 1e9, "bytes": 1e9, "seconds": 0.002, "limit_seconds": 0.001}
    parts = [
        {"name": "whole", "part_of": None, "forward": passes, "backward": passes},
        {"name": "half", "part_of": "whole", "forward": passes, "backward": passes},
    ]
    result = {"parts": parts, "step_seconds": {"median": 0.008}}
    rows = breakdown_rows(result | {"pass_seconds": {"forward": 0.003, "backward": 0.004, "step": 0.001}})
    named = {str(row[0]): dict(zip(BREAKDOWN_HEADERS, row, strict=True)) for row in rows}
    assert named["all parts"]["GFLOP"] == 2
    assert named["all parts"]["lost ms"] == pytest.approx(2)
    assert named["- half"]["% of limit"] == pytest.approx(50)
    assert named["whole step"]["forward ms"] == pytest.approx(4)
    assert named["whole step"]["lost ms"] == pytest.approx(6)


def test_timer_returns_the_time_between_marks() -> None:
    timer = DeviceTimer(CPU)
    for _ in range(3):
        timer.mark()
    assert len(timer.seconds()) == 2
    assert all(seconds >= 0 for seconds in timer.seconds())
    assert measure_copy_rate(CPU, repeats=1) > 0
