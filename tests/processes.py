"""Real processes over gloo: runs a function in several of them and collects what they return."""

import multiprocessing
import os
import pickle
import traceback

import torch
import torch.distributed as dist


def _run(function, rank, size, store, connection):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        result = True, function(rank)
        connection.send_bytes(pickle.dumps(result))  # plainly: send() would share the tensors' memory
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        connection.send_bytes(pickle.dumps((False, traceback.format_exc())))
    finally:
        connection.close()
        os._exit(0)  # no atexit handlers of the tests' own process


def run_processes(function, size, folder, timeout=120):
    """Calls ``function(rank)`` in ``size`` forked processes that form a process group; returns results by rank."""
    context = multiprocessing.get_context("fork")
    store = os.path.join(str(folder), f"store-{size}-{os.urandom(4).hex()}")
    started = []
    for rank in range(size):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(function, rank, size, store, sending))
        process.start()
        sending.close()
        started.append((process, receiving))
    results = []
    try:
        for rank, (_, receiving) in enumerate(started):
            assert receiving.poll(timeout), f"process {rank} said nothing for {timeout} s"
            worked, result = pickle.loads(receiving.recv_bytes())
            assert worked, f"process {rank} failed:\n{result}"
            results.append(result)
        for process, _ in started:
            process.join(timeout)
    finally:
        for process, _ in started:
            if process.is_alive():
                process.kill()
    return results
