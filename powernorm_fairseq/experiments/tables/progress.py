"""Lines of progress on stderr: in place on a terminal, otherwise now and then."""

import functools
import sys
import time
from typing import Dict, List, Optional, Sequence

from powernorm_fairseq import console
from powernorm_fairseq.experiments.tables.run import Run

say = functools.partial(console.say, "reproduce")
PAUSE = 60.0  # seconds between plain lines about the same run


def duration(seconds: Optional[float]) -> str:
    """As people say it."""
    if seconds is None:
        return "unknown"
    minutes = int(round(seconds / 60))
    if minutes < 1:
        return f"{seconds:.0f} s"
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def describe(run: Run, step: str) -> str:
    """Where a run is, in one line."""
    if step != "training":
        return f"{run.name}: {step}"
    log = run.log.update()
    if not log.updates:
        return f"{run.name}: starting"
    total = run.total_updates
    parts = [f"update {log.updates}" + (f" of {total}" if total else ""), f"loss {log.latest.get('loss', '?')}"]
    best = log.best()
    if best is not None:
        parts.append(f"best valid {best['loss']:.3f}" + (f" (ppl {best['ppl']:.2f})" if best["ppl"] else ""))
    if run.seconds_left is not None:
        parts.append(f"{duration(run.seconds_left)} left")
    return f"{run.name}: " + ", ".join(parts)


class Display:
    """Shows one line for each run that is being worked on."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.shown: List[str] = []
        self.last: Dict[str, float] = {}

    def show(self, lines: Sequence[str]) -> None:
        """Replaces the lines shown before, or on no terminal adds those whose run has been silent for a while."""
        if self.terminal:
            if list(lines) != self.shown:
                self.clear()
                sys.stderr.write("".join(line + "\n" for line in lines))
                sys.stderr.flush()
                self.shown = list(lines)
            return
        for line in lines:
            name = line.split(":")[0]
            if time.monotonic() - self.last.get(name, -PAUSE) >= PAUSE:
                self.last[name] = time.monotonic()
                say(line)

    def clear(self) -> None:
        """Takes back what stands on the terminal, so that other lines can be written."""
        if self.shown:
            sys.stderr.write(f"\x1b[{len(self.shown)}A\x1b[J")
            self.shown = []

    def note(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        say(text)
