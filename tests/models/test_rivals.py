"""RBN's penalty in real trainings, and the settings that one norm alone has."""

import pytest
import torch
from fairseq.criterions import FairseqCriterion

from powernorm_fairseq.norms import DynamicTanh, RegularisedBatchNorm, take_penalty
from tests.models.training import RECIPE, LMRun, Run

NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 1)
RBN = ["--encoder-norm", "rbn", "--dropout", 0.0, "--rbn-penalty-mean", 3.0, "--rbn-penalty-var", 2.0]


class Plain(Run):
    """With cross entropy."""

    recipe = " ".join(RECIPE).replace("label_smoothed_cross_entropy --label-smoothing 0.1", "cross_entropy").split()


CRITERIA = {"label smoothing": (Run, []), "cross entropy": (Plain, []), "sentences": (Plain, ["--sentence-avg"])}


def gradients(model):
    """Of all parameters but those that fairseq 0.12.2 makes and nothing uses."""
    named = [(name, parameter.grad) for name, parameter in model.named_parameters()]
    return {name: grad.float().clone() for name, grad in named if grad is not None}


def by_hand(run, samples, weight=None):
    """Gradients of the mean loss, where the penalty of a mini-batch counts ``weight`` or sample-size times; penalty."""
    run.model.train()
    run.model.zero_grad()
    total, penalties = 0, []
    for sample in samples:
        loss, size, _ = run.trainer.criterion(run.model, sample)
        penalty = take_penalty(run.model)
        (loss + (size if weight is None else weight) * penalty).backward()
        total += size
        penalties.append((float(penalty), size))
    found = {name: grad / total for name, grad in gradients(run.model).items()}
    return found, sum(penalty * size for penalty, size in penalties) / total


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("frequency", [1, 3])
def test_penalty_reaches_the_loss_with_any_criterion_and_is_logged(toy_data, criterion, frequency):
    kind, own = CRITERIA[criterion]
    flags = [*RBN, *own, "--update-freq", frequency]
    run, plain = kind(toy_data, *flags), kind(toy_data, *flags)
    expected, penalty = by_hand(plain, plain.batches[:frequency])
    logged = run.trainer.train_step(run.batches[:frequency])
    for name, grad in gradients(run.model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)
    assert logged["rbn_penalty"] == pytest.approx(penalty, rel=1e-3)
    # the loss of the log is the criterion's own
    free = kind(toy_data, *flags, "--rbn-penalty-mean", 0, "--rbn-penalty-var", 0)
    same = free.trainer.train_step(free.batches[:frequency])
    assert same["rbn_penalty"] == 0 and same["loss"] == pytest.approx(logged["loss"], rel=1e-5)
    assert any(not torch.allclose(grad, expected[name]) for name, grad in gradients(free.model).items())


def test_penalty_in_the_release_recipe_counts_once_for_each_mini_batch(toy_data):
    flags = [*RBN, "--update-freq", 2, "--norm-recipe", "release"]
    run, plain = Run(toy_data, *flags), Run(toy_data, *flags)
    expected, _ = by_hand(plain, plain.batches[:2], weight=1.0)
    run.trainer.train_step(run.batches[:2])
    for name, grad in gradients(run.model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)
    assert isinstance(run.model.encoder.layer_norm, torch.nn.LayerNorm)
    assert len(run.norms(RegularisedBatchNorm)) == 4
    assert {norm.layer_scale for norm in run.norms().values()} == {"none"}


@pytest.mark.parametrize("flag", ["--fp16", "--memory-efficient-fp16", "--bf16", "--amp"])
def test_penalty_in_half_precision(toy_data, flag):
    if "16" in flag and not NEW_TORCH:
        pytest.skip("this torch cannot multiply half-precision matrices on a CPU")
    flags = [*RBN, flag, *(["--fp16-init-scale", 4] if "fp16" in flag else [])]
    run, plain = Run(toy_data, *flags), Run(toy_data, *RBN)
    logged = run.trainer.train_step(run.batches[:1])
    expected, penalty = by_hand(plain, plain.batches[:1])
    assert logged["rbn_penalty"] == pytest.approx(penalty, rel=0.03)
    free = Run(toy_data, *flags, "--rbn-penalty-mean", 0, "--rbn-penalty-var", 0)
    free.trainer.train_step(free.batches[:1])
    name = "encoder.layers.0.fc2.weight"  # some of fairseq's optimizers leave its gradient multiplied by a number
    ours, without = (torch.cosine_similarity(gradients(each.model)[name], expected[name], 1) for each in (run, free))
    assert ours.mean() > 0.99 and without.mean() < 0.9


def test_penalty_under_activation_checkpointing(toy_data):
    plain, checkpointed = Run(toy_data, *RBN), Run(toy_data, *RBN, "--checkpoint-activations")
    for run in (plain, checkpointed):
        run.trainer.train_step(run.batches[:1])
    for name, grad in gradients(plain.model).items():
        torch.testing.assert_close(gradients(checkpointed.model)[name], grad, rtol=1e-4, atol=1e-6)


def test_validation_has_no_penalty(toy_data):
    run = Run(toy_data, *RBN)
    run.train(2)
    logged = run.trainer.valid_step(run.batches[0])
    run.model.eval()
    loss, _, _ = run.trainer.criterion(run.model, run.batches[0])
    assert "rbn_penalty" not in logged and take_penalty(run.model) is None
    assert logged["loss"] == pytest.approx(float(loss) / run.batches[0]["ntokens"] / 0.6931, rel=1e-3)


def test_criterion_keeps_its_attributes(toy_data):
    """A task's train_step may ask its criterion for anything."""
    from powernorm_fairseq.models.penalty import with_penalty

    run = Run(toy_data, *RBN)
    wrapped = with_penalty(run.trainer.criterion, run.model)
    assert isinstance(run.trainer.criterion, FairseqCriterion) and wrapped.eps == 0.1
    assert with_penalty(run.trainer.criterion, Run(toy_data, "--encoder-norm", "bn").model) is run.trainer.criterion


# ---------------------------------------------------------------- settings


def test_own_settings_reach_their_norm(toy_data):
    flags = "--encoder-norm un --decoder-norm mabn --un-window 7 --un-outliers"
    run = Run(toy_data, *flags.split())
    assert {(norm.window, norm.outliers) for name, norm in run.norms().items() if "encoder.l" in name} == {(7, True)}
    assert {norm.window for name, norm in run.norms().items() if name.startswith("decoder")} == {16}
    run = Run(toy_data, *"--encoder-norm dyt --decoder-norm derf --dyt-alpha 0.3 --derf-alpha 0.7".split())
    found = {name.split(".")[0]: norm.alpha_start for name, norm in run.norms().items()}
    assert found == {"encoder": 0.3, "decoder": 0.7}
    run = Run(toy_data, *"--encoder-norm dyt --dyt-alpha 0.2 --dyt-alpha-attention 0.8".split())
    for name, norm in run.norms().items():
        assert norm.alpha_start == (0.8 if "attn" in name else 0.2), name


def test_rbn_penalties_follow_the_place_of_the_norm(toy_data):
    for flags, expected in (([], (0.1, 0.01)), (["--post-norm"], (60.0, 0.0))):
        norms = Run(toy_data, "--encoder-norm", "rbn", *flags).norms()
        assert {(norm.penalty_mean, norm.penalty_var) for norm in norms.values()} == {expected}
    norms = Run(toy_data, "--encoder-norm", "rbn", "--post-norm", "--rbn-penalty-var", 0.5).norms()
    assert {(norm.penalty_mean, norm.penalty_var) for norm in norms.values()} == {(60.0, 0.5)}


def test_prepbn_falls_over_four_fifths_of_the_training(toy_data):
    flags = ["--encoder-norm", "prepbn", "--max-update", 50, "--update-freq", 3]
    assert {norm.updates for norm in Run(toy_data, *flags).norms().values()} == {120}
    assert {norm.updates for norm in Run(toy_data, *flags, "--prepbn-updates", 7).norms().values()} == {21}
    with pytest.raises(ValueError, match="give --prepbn-updates, or --max-update"):
        Run(toy_data, "--encoder-norm", "prepbn", "--max-update", 0)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--encoder-norm pn --un-window 3", "--un-window is a setting of un alone, but the norms are pn and ln"),
        ("--encoder-norm un --rbn-penalty-mean 3", "--rbn-penalty-mean is a setting of rbn alone"),
        ("--encoder-norm bn --un-outliers", "--un-outliers is a setting of un alone"),
        ("--encoder-norm bn --prepbn-updates 9", "--prepbn-updates is a setting of prepbn alone"),
        ("--encoder-norm derf --dyt-alpha 1", "--dyt-alpha is a setting of dyt alone, but the norms are derf and ln"),
        ("--encoder-norm un --un-window 0", "--un-window=0 is too small"),
        ("--encoder-norm rbn --rbn-penalty-var -1", "--rbn-penalty-var=-1.0 is too small"),
        ("--encoder-norm dyt --dyt-alpha 0", "--dyt-alpha=0.0 must be greater than 0"),
    ],
)
def test_settings_that_the_norm_lacks_are_refused_with_a_sentence(toy_data, flags, message):
    with pytest.raises(ValueError, match=message):
        Run(toy_data, *flags.split())


def test_dyt_in_language_models_is_as_its_authors_have_it(toy_text):
    for arch in ("tensorized_lm_tiny", "powernorm_transformer_lm_tiny"):
        run = LMRun(toy_text, "--norm", "dyt", arch=arch)
        norms = run.norms(DynamicTanh)
        assert len(norms) == 5 and all(norm.bias is None for norm in norms.values())
        scale = run.model.decoder.embed_scale
        assert isinstance(scale, torch.nn.Parameter) and float(scale) == pytest.approx(4.0)
        run.train(2)
        assert float(scale) != pytest.approx(4.0, abs=1e-4)
    assert not isinstance(LMRun(toy_text, "--norm", "derf").model.decoder.embed_scale, torch.nn.Parameter)


def test_unknown_norm_is_refused_by_the_command_line(toy_data, capsys):
    with pytest.raises(SystemExit):
        Run(toy_data, "--encoder-norm", "pnorm")
    assert "invalid choice: 'pnorm' (choose from" in capsys.readouterr().err
