"""Exported models against fairseq's own: the same tokens, in a process that knows torch alone."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("fairseq")

import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from powernorm_fairseq.models import export
from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.safe_load import has_native_allow_list
from tests.models.training import LMRun, Run

exports = pytest.mark.skipif(not has_native_allow_list(), reason="exporting a model takes torch 2.6")
LONGEST = 15  # tokens of a translation

# What a stranger writes: greedy search as fairseq's generator with beam 1 makes it; eos is 2 and padding 1.
GREEDY = f"""
import json, sys, torch

def translate(encoder, step, source):
    memory, padding, state = encoder(torch.tensor(source))
    tokens, found = torch.full((len(source),), 2), [[] for _ in source]
    while not all(2 in each for each in found):
        log_probs, state = step(tokens, state, memory, padding)
        log_probs[:, 1] = -torch.inf
        if not found[0]:
            log_probs[:, 2] = -torch.inf
        tokens = log_probs.argmax(1)
        if len(found[0]) == {LONGEST}:
            tokens[:] = 2
        for each, token in zip(found, tokens.tolist()):
            each.append(token)
    return [each[: each.index(2) + 1] for each in found]

translations = {{}}
for folder, batches in json.load(sys.stdin).items():
    encoder, step = (torch.export.load(folder + name).module() for name in ("/encoder.pt2", "/step.pt2"))
    translations[folder] = [each for batch in batches for each in translate(encoder, step, batch)]
assert not [name for name in sys.modules if name.split(".")[0] in ("fairseq", "powernorm_fairseq")]
json.dump(translations, sys.stdout)
"""


def fairseq_translations(checkpoint, size):
    """What fairseq makes of the test set in batches of ``size`` sentences, and the batches."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    models[0].make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)
    task.load_dataset("test")
    generator = SequenceGenerator(models, task.target_dictionary, beam_size=1, max_len_b=LONGEST)
    batches, found = [], []
    for batch in task.get_batch_iterator(task.dataset("test"), max_sentences=size).next_epoch_itr(shuffle=False):
        batches.append(batch["net_input"]["src_tokens"].tolist())
        found += [hypotheses[0]["tokens"].tolist() for hypotheses in task.inference_step(generator, models, batch)]
    return batches, found


@exports
@pytest.mark.parametrize("norm", ["pn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ln", "bn"))])
def test_exported_programs_translate_as_fairseq(norm, toy_data, tmp_path):
    """Through a checkpoint and the command line; batches of 4, 7 and 1 sentences, none of them of the exported size."""
    run = Run(toy_data, "--encoder-norm", norm, "--decoder-norm", norm)
    run.train(100)
    checkpoint, out = tmp_path / f"{norm}.pt", tmp_path / norm
    run.trainer.consolidate_optimizer()
    run.trainer.save_checkpoint(str(checkpoint), {"train_iterator": {"epoch": 1}})
    command = [sys.executable, "-m", "powernorm_fairseq.models.export", str(checkpoint), "--out", str(out)]
    subprocess.run(command, check=True)
    assert sorted(path.name for path in out.iterdir()) == ["encoder.pt2", "step.pt2"]
    found = [fairseq_translations(checkpoint, size) for size in (4, 7, 1)]
    sources = [batch for batches, _ in found for batch in batches]
    wanted = [tokens for _, translations in found for tokens in translations]
    assert len({tuple(tokens) for tokens in wanted}) > 10  # a model that says something
    assert len({len(batch[0]) for batch in sources}) > 5 and any(1 in row for batch in sources for row in batch)
    request = json.dumps({str(out): sources}).encode()
    done = subprocess.run([sys.executable, "-c", GREEDY], input=request, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {str(out): wanted}


@exports
@pytest.mark.parametrize(
    "flags",
    [*(("--encoder-norm", norm, "--decoder-norm", norm) for norm in norm_names()),
     ("--encoder-norm", "pn", "--norm-recipe", "release"), ("--encoder-norm", "pn", "--fold-norms"),
     ("--encoder-norm", "pn", "--post-norm", "--layernorm-embedding"),
     ("--encoder-learned-pos", "--decoder-learned-pos"), ("--no-token-positional-embeddings",)],
    ids=lambda flags: " ".join(flags).replace("--encoder-norm ", "").replace("--", ""),
)  # fmt: skip
def test_every_model_is_exported_as_it_is(flags, toy_data):
    run = Run(toy_data, "--encoder-layers", 1, "--decoder-layers", 1, *flags)
    run.train(5)
    model = run.model.eval()
    encoder, step = (program.module() for program in export.export_model(model))
    for sentences, source, target in ((1, 1, 1), (3, 9, 4), (6, 2, 7)):
        src = torch.randint(4, 40, (sentences, source))
        src[0, : source // 2] = model.encoder.padding_idx
        prev = torch.randint(4, 40, (sentences, target))
        with torch.no_grad():
            wanted = model.get_normalized_probs(model(src, None, prev), log_probs=True)
        memory, padding, state = encoder(src)
        assert torch.equal(padding, src.eq(model.encoder.padding_idx)) and state.shape[-2] == 0
        for position in range(target):
            found, state = step(prev[:, position], state, memory, padding)
            torch.testing.assert_close(found, wanted[:, position], atol=1e-5, rtol=1e-5)


@exports
def test_more_positions_than_the_model_has_are_refused(toy_data):
    run = Run(toy_data, "--max-source-positions", 12, "--max-target-positions", 4)
    encoder, step = (program.module() for program in export.export_model(run.model))
    memory, padding, state = encoder(torch.full((2, 12), 5))
    for _ in range(4):
        _, state = step(torch.tensor([5, 6]), state, memory, padding)
    with pytest.raises(Exception, match="3"):
        step(torch.tensor([5, 6]), state, memory, padding)
    with pytest.raises(Exception, match="12"):
        encoder(torch.full((2, 13), 5))


@exports
@pytest.mark.parametrize("flag", ["--cross-self-attention", "--no-cross-attention"])
def test_what_is_not_exported_is_named(flag, toy_data):
    with pytest.raises(ValueError, match=f"{flag} is not exported"):
        export.export_model(Run(toy_data, flag).model)


@exports
def test_a_language_model_is_refused(toy_text):
    with pytest.raises(ValueError, match="this is a language model; only translation models"):
        export.export_model(LMRun(toy_text).model)


@exports
def test_a_checkpoint_that_is_not_there_is_a_sentence(tmp_path, capsys):
    assert export.main([str(tmp_path / "none.pt"), "--out", str(tmp_path / "out")]) == 1
    assert "none.pt" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_an_old_torch_is_told_what_is_needed(monkeypatch, toy_data):
    monkeypatch.setattr(export, "has_native_allow_list", lambda: False)
    with pytest.raises(RuntimeError, match="exporting a model takes torch 2.6 or newer"):
        export.export_model(Run(toy_data).model)
