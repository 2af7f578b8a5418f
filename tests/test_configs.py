"""Every shipped configuration composes, holds known settings only, and says what the paper's recipes say."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.initialize import hydra_init
from fairseq.dataclass.utils import merge_with_parent
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from hydra.core.global_hydra import GlobalHydra
from hydra.experimental import compose, initialize_config_dir
from omegaconf import OmegaConf

from data_prep.recipes import LM_RECIPES
from powernorm_fairseq.models.architectures import PTB, TINY, WIKITEXT103
from powernorm_fairseq.norms import norm_names
from powernorm_fairseq.safe_load import load_checkpoint

TOP = Path(__file__).parent.parent
CONFIGS = TOP / "configs"
EXPERIMENTS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
LANGUAGE_MODELS = [name for name in EXPERIMENTS if "base/language_model" in (CONFIGS / f"{name}.yaml").read_text()]


def composed(experiment, norm="pn"):
    """The configuration as fairseq-hydra-train composes it."""
    hydra_init(experiment)
    GlobalHydra.instance().clear()
    override = "model.norm" if experiment in LANGUAGE_MODELS else "norm"
    with initialize_config_dir(config_dir=str(CONFIGS)):
        cfg = compose(experiment, overrides=[f"{override}={norm}"])
    cfg.task.data = "data"
    return cfg


def test_the_experiments_and_a_file_for_each_norm():
    assert EXPERIMENTS == ["demo", "iwslt14", "lm_tiny", "multi30k", "ptb", "wikitext103", "wmt14"]
    assert LANGUAGE_MODELS == ["lm_tiny", "ptb", "wikitext103"]
    assert sorted(path.stem for path in (CONFIGS / "norm").glob("*.yaml")) == sorted(norm_names())


@pytest.mark.parametrize("norm", sorted(norm_names()))
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_composes_of_known_settings(experiment, norm):
    cfg = composed(experiment, norm)  # the top level is checked against fairseq's schema
    for group, registry in (
        ("task", TASK_DATACLASS_REGISTRY),
        ("model", MODEL_DATACLASS_REGISTRY),
        ("criterion", CRITERION_DATACLASS_REGISTRY),
        ("optimizer", OPTIMIZER_DATACLASS_REGISTRY),
        ("lr_scheduler", LR_SCHEDULER_DATACLASS_REGISTRY),
    ):
        merge_with_parent(registry[cfg[group]._name](), cfg[group])  # raises at a setting that does not exist
    assert (cfg.model.norm if experiment in LANGUAGE_MODELS else cfg.model.encoder_norm) == norm


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_what_an_experiment_says_is_not_overruled(experiment):
    """hydra merges the files of the defaults list after the experiment's own, so they must not set the same."""
    own, cfg = OmegaConf.load(str(CONFIGS / f"{experiment}.yaml")), composed(experiment)
    for group, settings in own.items():
        for name, value in settings.items() if group != "defaults" else ():
            assert cfg[group][name] == value, (group, name)


@pytest.mark.slow
def test_a_sweep_from_any_folder(toy_data, tmp_path):
    """Norms and seeds: each training in a folder of its own, below the one where the command was given."""
    command = [str(Path(sys.executable).parent / "fairseq-hydra-train"), "-m", "--config-dir", str(CONFIGS)]
    command += ["--config-name", "demo", "norm=ln,pn", "common.seed=1,2", f"task.data={toy_data}", "common.cpu=true"]
    command += ["optimization.max_update=1", "hydra.sweep.dir=sweep"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=str(tmp_path), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = []
    for job in "0123":
        cfg = load_checkpoint(tmp_path / "sweep" / job / "checkpoints" / "checkpoint_last.pt")["cfg"]
        found.append((cfg["model"]["encoder_norm"], cfg["common"]["seed"]))
    assert sorted(found) == [("ln", 1), ("ln", 2), ("pn", 1), ("pn", 2)]


@pytest.mark.parametrize(
    "experiment, lr, warmup, decay, updates, patience, average, width, ffn, heads, languages",
    [
        ("iwslt14", 0.0015, 8000, 0.0001, 100000, 5, 10, 512, 1024, 4, "de-en"),
        ("wmt14", 0.003, 8000, 0.0, 300000, 10, 10, 1024, 4096, 16, "en-de"),
    ],
)
def test_recipes_of_the_paper(
    experiment, lr, warmup, decay, updates, patience, average, width, ffn, heads, languages
):
    cfg = composed(experiment)
    assert list(cfg.optimization.lr) == [lr] and cfg.optimization.max_update == updates
    assert cfg.optimization.clip_norm == 0 and cfg.optimization.stop_min_lr == 1e-9
    assert cfg.lr_scheduler.warmup_updates == warmup and cfg.lr_scheduler.warmup_init_lr == 1e-7
    assert cfg.optimizer.get("weight_decay", 0.0) == decay and str(cfg.optimizer.adam_betas) == "(0.9, 0.98)"
    assert cfg.criterion.label_smoothing == 0.1 and cfg.dataset.max_tokens == 4096
    assert cfg.checkpoint.patience == patience and cfg.checkpoint.keep_last_epochs == average
    model = cfg.model
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.3, 0.1, 0.1)
    assert model.share_all_embeddings
    for side in ("encoder", "decoder"):
        sizes = [model[f"{side}_{size}"] for size in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")]
        assert sizes == [6, width, ffn, heads]
    assert f"{cfg.task.source_lang}-{cfg.task.target_lang}" == languages


@pytest.mark.parametrize(
    "experiment, architecture, context, tokens",
    [("ptb", PTB, 32, 3840), ("wikitext103", WIKITEXT103, 80, 4800), ("lm_tiny", TINY, 32, 1024)],
)
def test_recipes_of_the_language_models(experiment, architecture, context, tokens):
    """The same sizes as the architecture of that name; schedule and length as in the paper's appendix."""
    cfg = composed(experiment)
    for setting, value in architecture.items():
        assert cfg.model.get(setting, False) == value, setting
    assert cfg.task.tokens_per_sample == context and cfg.dataset.max_tokens == tokens and cfg.model.attention_cores == 1
    if experiment == "lm_tiny":
        return
    assert cfg.optimization.max_epoch == 30 and cfg.lr_scheduler.warmup_updates == 4000
    assert list(cfg.optimization.lr) == [0.00025] and cfg.model.dropout == 0.3
    blocks = math.ceil(LM_RECIPES[experiment]().expected["train"] / context)
    assert cfg.optimization.max_update == 30 * math.ceil(blocks * context / tokens)


def test_training_and_decoding_from_a_configuration(toy_data, tmp_path):
    """fairseq-hydra-train for real, and fairseq-generate on its checkpoint."""
    bin_dir = Path(sys.executable).parent
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    train = [
        str(bin_dir / "fairseq-hydra-train"),
        *("--config-dir", str(CONFIGS), "--config-name", "demo", "norm=pn", f"task.data={toy_data}"),
        *(f"checkpoint.save_dir={tmp_path}/run", "common.cpu=true", "optimization.max_update=3"),
        *("dataset.max_tokens=200", "model.encoder_layers=1", f"common.user_dir={TOP / 'powernorm_fairseq'}"),
    ]
    done = subprocess.run(train, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]  # nothing but what was asked for
    generate = [
        *(str(bin_dir / "fairseq-generate"), str(toy_data), "--user-dir", str(TOP / "powernorm_fairseq")),
        *("--path", str(tmp_path / "run" / "checkpoint_last.pt"), "--cpu", "--beam", "2"),
    ]
    done = subprocess.run(generate, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "BLEU4" in done.stdout
