"""Runs fairseq-train again and again, each time in a fork of this process that ends as an interpreter does.

A line of standard input is a request, ``{"arguments": [...], "log": FILE, "stop": FILE}``; the answer is a line with
the exit status of the training. The fork saves the loading of the modules, ten times as long as what is tested;
``multiprocessing`` would leave out the interpreter's end, which is what is tested.
"""

import json
import os
import sys

import fairseq_cli.train
import torch

torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer loads torch's compiler

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        os.environ["POWERNORM_STOP_FILE"] = request["stop"]
        sys.argv = ["fairseq-train", *request["arguments"]]
        fairseq_cli.train.cli_main()
        break
    status = os.waitpid(child, 0)[1]
    print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
