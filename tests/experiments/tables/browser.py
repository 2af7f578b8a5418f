"""Looks at an HTML page in Debian's chromium, without a window: its layout at several widths, and its console."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --hide-scrollbars --enable-logging=stderr"
).split()
MEASURE = """
const found = {};
for (const frame of document.querySelectorAll("iframe")) {
  const page = frame.contentDocument, root = page.documentElement, width = frame.clientWidth;
  const inside = (box) => box.width > 0 && box.height > 0 && box.left >= 0 && box.right <= width + 1;
  const shown = (element) => element.getBoundingClientRect();
  const within = (box, other) => box.left >= other.left && box.right <= other.right && box.bottom <= other.bottom;
  const texts = [...page.querySelectorAll("svg text")];
  found[width] = {
    overflow: root.scrollWidth - width,
    height: root.scrollHeight,
    text: page.body.innerText,
    plots: [...page.querySelectorAll("svg")].filter((plot) => inside(shown(plot))).length,
    lines: [...page.querySelectorAll("svg [id^='curve'] path, svg [id^='curve'] use")]
      .filter((line) => shown(line).width > 0).length,
    smallest: Math.min(...texts.map((text) => shown(text).height)),
    cut: texts.filter((text) => !within(shown(text), shown(text.ownerSVGElement))).map((text) => text.textContent),
  };
}
document.body.innerHTML = "<pre id='found'></pre>";
document.getElementById("found").textContent = JSON.stringify(found);
"""


def program() -> Optional[str]:
    """The browser, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def frames(page: str, widths: Sequence[int], height: int) -> str:
    """The page in frames, each as wide as a screen would be: a browser window cannot be as narrow as a phone."""
    frame = '<iframe style="border:0" width="{}" height="{}" srcdoc="{}"></iframe>'
    return "".join(frame.format(width, height, html.escape(page)) for width in widths)


def look(page: str, widths: Sequence[int]) -> Tuple[Dict[int, Dict[str, Any]], List[str]]:
    """What a page is like at each width, and the lines on the browser's console."""
    outer = f"<!DOCTYPE html><body>{frames(page, widths, 900)}<script>onload = () => {{{MEASURE}}}</script>"
    with tempfile.TemporaryDirectory(prefix="browser-") as folder:
        file = Path(folder) / "page.html"
        file.write_text(outer, encoding="utf-8")
        size = f"--window-size={sum(widths) + 100},1000"
        command = [str(program()), *FLAGS, size, f"--user-data-dir={folder}/user", "--dump-dom", file.as_uri()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    dom = done.stdout.decode("utf-8")
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, done.stderr.decode("utf-8", "replace")[-2000:]
    measured = {int(width): facts for width, facts in json.loads(html.unescape(found.group(1))).items()}
    return measured, re.findall(r"CONSOLE.*", done.stderr.decode("utf-8", "replace"))
