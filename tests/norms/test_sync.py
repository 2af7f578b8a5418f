"""Processes with shares of a batch give what one process with the whole batch gives."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from powernorm_fairseq.norms import training_step
from tests.norms.batches import bare_norm, random_affine, random_batch
from tests.norms.batches import training_step as step
from tests.processes import run_processes

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
OPTIONS = {"warmup_updates": 2, "window": 2, "groups": 2, "layer_scale": "head", "momentum": 0.3, "alpha_bwd": 0.8}
CASES = [(name, "paper") for name in ("bn", "brn", "mabn", "pnv", "pn", "rbn", "un", "prepbn")]
CASES += [(name, "release") for name in ("bn", "pn", "rbn")]
REENTRANT = {"use_reentrant": True} if torch.__version__ >= "2" else {}
STEPS = 6
# Sequences of a batch of 12 that each process gets: equal, very unequal, one process without any.
SHARES = {"two": (6, 6), "unequal": (11, 1), "three with an empty one": (7, 0, 5), "four": (1, 9, 1, 1)}


def make(name, recipe, sync=True):
    return random_affine(bare_norm(name, 6, recipe=recipe, sync=sync, **OPTIONS)).double()


def batch(seed):
    """Twelve sequences with padding; all of one share of "four" is padding."""
    x, dy, mask = random_batch(seed, (12, 5, 6))
    mask[-1] = True
    return x * (1 + torch.arange(12.0).view(12, 1, 1)) + 3, dy, mask  # the shares differ in mean and scale


def alone(name, recipe):
    """Outputs, gradients and buffers of one process with the whole batch, for each step."""
    norm, results = make(name, recipe), []
    for seed in range(STEPS):
        x, dy, mask = batch(seed)
        y, dx = step(norm, x, dy, mask)
        grads = [parameter.grad.clone() for parameter in norm.parameters()]
        results.append((y, dx, grads, [buffer.clone() for buffer in norm.buffers()]))
    return results


def share_of(rank, sizes, *tensors):
    start = sum(sizes[:rank])
    return [tensor[start : start + sizes[rank]] for tensor in tensors]


@pytest.mark.parametrize("shares", SHARES)
def test_processes_equal_one(shares, tmp_path):
    sizes = SHARES[shares]

    def work(rank):
        results = {}
        for name, recipe in CASES:
            norm, steps = make(name, recipe), []
            for seed in range(STEPS):
                x, dy, mask = share_of(rank, sizes, *batch(seed))
                y, dx = step(norm, x, dy, mask)
                grads = [parameter.grad.clone() for parameter in norm.parameters()]
                steps.append((y, dx, grads, [buffer.clone() for buffer in norm.buffers()]))
            results[name, recipe] = steps
        return results

    ranks = run_processes(work, len(sizes), tmp_path)
    for case in CASES:
        for number, (y, dx, grads, buffers) in enumerate(alone(*case)):
            mask = batch(number)[2]
            parts = [rank[case][number] for rank in ranks]
            torch.testing.assert_close(torch.cat([part[0] for part in parts])[~mask], y[~mask], **CLOSE)
            torch.testing.assert_close(torch.cat([part[1] for part in parts])[~mask], dx[~mask], **CLOSE)
            for index, grad in enumerate(grads):
                torch.testing.assert_close(sum(part[2][index] for part in parts), grad, rtol=1e-10, atol=1e-9)
            for part in parts:
                for ours, theirs in zip(part[3], buffers):
                    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_stand_in_batch_takes_part_and_contributes_nothing(tmp_path):
    """fairseq gives a process without data the first batch again, with the loss multiplied by zero."""

    def work(rank):
        results = {}
        for name, recipe in CASES:
            norm = make(name, recipe)
            for seed in range(STEPS):
                x, dy, mask = batch(seed)
                if rank == 1 and seed >= 2:
                    with training_step(counts=False):
                        y, dx = step(norm, x, dy * 0, mask)
                        assert not dx.any()
                elif rank == 1 or seed < 2:
                    step(norm, *share_of(rank, (6, 6), x, dy, mask))
                else:
                    step(norm, x, dy, mask)
            results[name, recipe] = [buffer.clone() for buffer in norm.buffers()]
        return results

    ranks = run_processes(work, 2, tmp_path)
    for case in CASES:
        for rank in ranks:
            for ours, theirs in zip(rank[case], alone(*case)[-1][3]):
                torch.testing.assert_close(ours, theirs, **CLOSE)


def test_activation_checkpointing(tmp_path):
    def work(rank):
        results = {}
        for name, recipe in CASES:
            plain, checkpointed = make(name, recipe), make(name, recipe)
            for seed in range(STEPS):
                x, dy, mask = share_of(rank, (4, 8), *batch(seed))
                step(plain, x, dy, mask)
                checkpoint(checkpointed, x.clone().requires_grad_(), mask, **REENTRANT).backward(dy)
            results[name, recipe] = all(map(torch.equal, plain.buffers(), checkpointed.buffers()))
        return results

    for rank in run_processes(work, 2, tmp_path):
        assert all(rank.values()), rank


class Block(torch.nn.Module):
    """A norm between two linear layers."""

    def __init__(self, norm):
        super().__init__()
        self.before, self.norm, self.after = torch.nn.Linear(6, 6), norm, torch.nn.Linear(6, 6)
        random_affine(self)

    def forward(self, x, mask):
        return self.after(self.norm(self.before(x), mask))


def test_inside_torchs_distributed_data_parallel(tmp_path):
    """DDP reduces gradients while the backward still runs, on the same group; it hands out the mean over processes."""

    def gradients(model, x, dy, mask):
        for _ in range(4):
            model.zero_grad()
            model(x, mask).backward(dy.masked_fill(mask.unsqueeze(-1), 0.0))
        return [parameter.grad for parameter in model.parameters()]

    def work(rank):
        results = {}
        for case in CASES:
            model = DistributedDataParallel(Block(make(*case)).double())
            results[case] = gradients(model, *share_of(rank, (11, 1), *batch(0)))
        return results

    first, second = run_processes(work, 2, tmp_path)
    for case in CASES:
        expected = gradients(Block(make(*case)).double(), *batch(0))
        for one, two, whole in zip(first[case], second[case], expected):
            assert torch.equal(one, two)
            torch.testing.assert_close(2 * one, whole, rtol=1e-8, atol=1e-8)


def test_one_collective_for_each_direction(tmp_path):
    def work(rank):
        sent, original = [], dist.all_reduce
        dist.all_reduce = lambda tensor, **options: sent.append(tensor.shape) or original(tensor, **options)
        counts = {}
        for name, recipe in CASES:
            norm = make(name, recipe)
            x, dy, mask = share_of(rank, (4, 8), *batch(0))
            x = x.clone().requires_grad_()
            y = norm(x, mask)
            forward = len(sent)
            y.backward(dy)
            counts[name, recipe] = (forward, len(sent) - forward)
            assert all(len(shape) == 1 for shape in sent)
            sent.clear()
            norm.eval()(x, mask)
            assert not sent
        dist.all_reduce = original
        return counts

    for rank in run_processes(work, 2, tmp_path):
        assert set(rank.values()) == {(1, 1)}


def test_without_sync_each_process_uses_its_own_batch(tmp_path):
    def work(rank):
        norm = make("bn", "paper", sync=False)
        step(norm, *share_of(rank, (6, 6), *batch(0)))
        return norm.running_mean.clone()

    first, second = run_processes(work, 2, tmp_path)
    assert not torch.allclose(first, second)


def test_process_group_limits_the_span(tmp_path):
    def work(rank):
        groups = [dist.new_group([0, 1]), dist.new_group([2])]
        norm = bare_norm("pnv", 6, sync=True, process_group=groups[rank // 2]).double()
        step(norm, *share_of(rank, (4, 4, 4), *batch(0)))
        return norm.running_psi2.clone()

    first, second, third = run_processes(work, 3, tmp_path)
    assert torch.equal(first, second) and not torch.allclose(first, third)


@pytest.mark.parametrize("name, recipe", CASES)
def test_no_op_outside_torch_distributed(name, recipe):
    synced, plain = make(name, recipe), make(name, recipe, sync=False)
    for seed in range(3):
        for ours, theirs in zip(step(synced, *batch(seed)), step(plain, *batch(seed))):
            assert torch.equal(ours, theirs)
    assert all(map(torch.equal, synced.buffers(), plain.buffers()))


def test_variance_does_not_cancel_far_from_zero(tmp_path):
    """float32, mean 1000, deviation 1: the naive mean of squares would lose every digit of the variance."""

    def work(rank):
        norm = bare_norm("bn", 4, sync=True, momentum=0.5)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(12):
            norm(1000 + torch.randn(500, 4, generator=generator))
        return norm.running_var.clone()

    for rank in run_processes(work, 2, tmp_path):
        torch.testing.assert_close(rank, torch.ones(4), rtol=0.1, atol=0)


def test_after_the_warm_up_no_sum_is_waited_for_before_the_output(tmp_path):
    """PN's output and input gradient need no statistics of this batch: both sums run beside the next layers."""

    def work(rank):
        norm = make("pn", "paper")
        events, original = [], dist.all_reduce

        class Noted:
            def __init__(self, work, number):
                self.work, self.number = work, number

            def wait(self):
                events.append(f"waited for {self.number}")
                self.work.wait()

        def all_reduce(tensor, **options):
            events.append("started")
            return Noted(original(tensor, **options), events.count("started"))

        seen = []
        for seed in range(4):
            x, dy, mask = share_of(rank, (4, 8), *batch(seed))
            x = x.clone().requires_grad_()
            dist.all_reduce = all_reduce
            y = torch.tanh(norm(x, mask)) * 1
            events.append("output")
            x.register_hook(lambda grad: events.append("gradient"))
            y.backward(dy)
            dist.all_reduce = original
            seen.append(list(events))
            events.clear()
        return seen

    late = ["started", "output", "waited for 1", "started", "gradient", "waited for 2"]
    for seen in run_processes(work, 2, tmp_path):
        assert seen[0][:3] == ["started", "waited for 1", "output"]  # the warm-up of 2 steps
        assert seen[3] == late, seen


def test_state_is_settled_before_it_is_saved(tmp_path):
    def work(rank):
        norm = make("pn", "paper")
        for seed in range(3):
            step(norm, *share_of(rank, (4, 8), *batch(seed)))
        norm(share_of(rank, (4, 8), *batch(3))[0])  # a forward whose backward has not come
        return norm.state_dict()["num_updates"].item(), norm.state_dict()["running_psi2"]

    first, second = run_processes(work, 2, tmp_path)
    assert first[0] == second[0] == 4 and torch.equal(first[1], second[1])
