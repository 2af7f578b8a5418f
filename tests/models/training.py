"""A real fairseq trainer on the toy corpus, in this process, for as many steps as a test wants."""

import argparse
import copy
import re
from pathlib import Path

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import powernorm_fairseq

USER_DIR = str(Path(powernorm_fairseq.__file__).parent)
SMALL = "--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32".split()
RECIPE = (
    "--optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 4 --max-tokens 200 --seed 7 --cpu "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --share-all-embeddings --num-workers 0 "
    "--max-update 10 --fp16-no-flatten-grads"  # the flat copy of the parameters asks CUDA for its device
).split()


LM_SMALL = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --tokens-per-sample 12".split()
LM_RECIPE = (
    "--task language_modeling --optimizer adam --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 4 --seed 7 "
    "--cpu --max-tokens 192 --num-workers 0 --max-update 10 --fp16-no-flatten-grads"
).split()


_configs: dict = {}


def config(argv):
    """What fairseq makes of a command line.

    That takes 0.3 s, half of the time of most tests. So it is done once for all command lines with the same flags, and
    then only the values are set that differ.
    """
    args = vars(options.parse_args_and_arch(options.get_training_parser(), argv))
    parts = [args.get(name) for name in ("arch", "task", "criterion", "optimizer", "lr_scheduler")]
    key = (*parts, *sorted(args))
    if key not in _configs:
        _configs[key] = args, convert_namespace_to_omegaconf(argparse.Namespace(**args))
    before, cfg = _configs[key]
    cfg = copy.deepcopy(cfg)
    for section in filter(None, cfg.values()):
        if isinstance(section, argparse.Namespace):  # a model without a dataclass, fairseq's own
            section.__dict__.update(args)
            continue
        for name in section:
            if name in args and args[name] != before[name]:
                section[name] = args[name]
    return cfg


class Run:
    """Model, trainer and batches for the given flags."""

    recipe = RECIPE

    def __init__(self, data, *flags, arch="powernorm_tiny", sizes=SMALL):
        utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))  # as fairseq's programs do first of all
        argv = [str(data), "--user-dir", USER_DIR, "--arch", arch, *self.recipe, *map(str, [*sizes, *flags])]
        self.cfg = config(argv)
        utils.set_torch_seed(self.cfg.common.seed)
        self.task = tasks.setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model)
        self.trainer = Trainer(self.cfg, self.task, self.model, self.task.build_criterion(self.cfg.criterion))
        self.iterator = self.trainer.get_train_iterator(epoch=1)
        self.trainer.begin_epoch(1)
        self.batches = list(self.iterator.next_epoch_itr(shuffle=False))

    def train(self, updates, first=0):
        """Runs updates on the batches in order; returns the loss of each."""
        frequency = self.cfg.optimization.update_freq[0]
        losses = []
        for update in range(first, first + updates):
            start = update * frequency
            samples = [self.batches[(start + i) % len(self.batches)] for i in range(frequency)]
            output = self.trainer.train_step(samples)
            losses.append(None if output is None else output["loss"])
        return losses

    def norms(self, kind=None):
        """The norms of this package in the model, by name."""
        from powernorm_fairseq.norms import Norm

        return {name: module for name, module in self.model.named_modules() if isinstance(module, kind or Norm)}

    def buffers(self):
        """All statistics of all norms."""
        norms = self.norms().items()
        return {f"{name}.{key}": buffer.clone() for name, norm in norms for key, buffer in norm.named_buffers()}


class LMRun(Run):
    """The same for a language model."""

    recipe = LM_RECIPE

    def __init__(self, data, *flags, arch="tensorized_lm_tiny", sizes=LM_SMALL):
        super().__init__(data, *flags, arch=arch, sizes=sizes)


# Left uninitialised by fairseq, and the copies of weights that fairseq 0.12.2 fills in when it loads a checkpoint.
NO_STATE = re.compile(r"_float_tensor$|layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$")


def state(model):
    """The state of a model, without what is none."""
    return {key: value for key, value in model.state_dict().items() if not NO_STATE.search(key)}


def same(ours, theirs):
    """Whether two dictionaries of tensors agree to the last bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
