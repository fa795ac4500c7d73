"""How long the viewer takes for a long episode and for a step of many, in Chromium.

    python benchmarks/viewer.py

The script creates a record of one episode of `--turns` turns that read `--tokens` tokens in all, and a run with a step
of `--episodes` episodes, in a temporary folder. `palimpsest view` serves them in a separate process, and Playwright's
Chromium opens them. It reports the median and maximum of `--repeats` in ms: from the URL to the memory of a turn on the
page (`first`: with a fresh server); from the key `j` to the next turn's memory, for turns that are not loaded yet; from
the URL to the table's rows. It also reports the memory of the page (JavaScript's heap) and of the server's process, in
MB, and the CPU time of the server's process and of the page's main thread: a lower bound of the time on an idle
machine.

Not covered: another browser, a network between both; processor time of the browser's other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palimpsest.config.engine import named
from palimpsest.rollout.trajectory_file import encode_groups, index_lines, index_of
from palimpsest.runs.jsonl_rows import encode_row
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec
from palimpsest.types import Completion, Grade, Group, Outcome, Problem, Prompt, StopReason, Trajectory, Turn

MEMORY = 64
_WORDS = "Anna lives in Rome. Bob keeps hens. It rained for a while. Carla sells hats. Dora drinks tea. "
_TURN = """(turn) => new Promise((done) => {
  const began = performance.now();
  const look = () => {
    const title = document.querySelector("#main .memory h2");
    if (title && title.textContent === "Memory after turn " + (turn + 1)) done(performance.now() - began);
    else requestAnimationFrame(look);
  };
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
  look();
})"""


def long_episode(codec: Codec, turns: int, tokens: int) -> Group:
    """An agent with a memory over `turns` turns, which read `tokens` tokens together."""
    ids = codec.encode(_WORDS)
    question = codec.encode("Where does Anna live?")
    drawn, length = keyed_random(0, "section"), max(1, tokens // turns - MEMORY - len(question))
    made, memory = [], (ids * MEMORY)[:MEMORY]
    for step in range(turns):
        section = drawn.choices(ids, k=length)
        pieces: dict[str, list[int]] = {"question": question, "memory": memory}
        if step < turns - 1:
            pieces["section"] = section
        prompt = Prompt.joined([Prompt.named(name, piece) for name, piece in pieces.items()])
        memory = [*memory[8:], *section[:8]]
        completion = Completion(tuple(memory), (-0.5,) * len(memory), StopReason.STOP)
        name = "read" if step < turns - 1 else "answer"
        made.append(Turn(tuple(prompt), completion, step, name, spans=prompt.spans))
    problem = Problem("long", "Where does Anna live?", ("Rome",), metadata={"evidence": ["Anna lives in Rome."]})
    played = Trajectory("long", "long", 0, tuple(made), Outcome.ANSWERED, "Rome")
    return Group(problem, (played,), (Grade(0.0),))


def short_groups(codec: Codec, episodes: int, size: int = 16) -> Iterator[Group]:
    """Groups of episodes of five short turns."""
    for number in range(episodes // size):
        one = long_episode(codec, 5, 1200)
        played = tuple(
            Trajectory(f"p{number}", f"1/0/p{number}", rollout, one.trajectories[0].turns, Outcome.ANSWERED, "Rome")
            for rollout in range(size)
        )
        yield Group(one.problem, played, tuple(Grade(float(rollout % 2)) for rollout in range(size)))


def write_folder(folder: Path, turns: int, tokens: int, episodes: int) -> None:
    """`run`, with its step 1, and the record `long.jsonl.zst`."""
    codec = Codec.load(named("embedded"))
    (folder / "run" / "trajectories").mkdir(parents=True)
    (folder / "run" / "config.yaml").write_text("recipe: benchmark\nmodel:\n  path: embedded\ntrain:\n  steps: 1\n")
    (folder / "run" / "metrics.jsonl").write_bytes(encode_row({"step": 1, "reward/mean": 0.5}))
    step = folder / "run" / "trajectories" / "step-000001.jsonl.zst"
    for path, groups in (
        (step, list(short_groups(codec, episodes))),
        (folder / "long.jsonl.zst", [long_episode(codec, turns, tokens)]),
    ):
        data = encode_groups(groups)
        path.write_bytes(data)
        index_of(path).write_bytes(index_lines(groups, data))


@contextmanager
def served(path: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of a viewer on `path`."""
    command = [sys.executable, "-m", "palimpsest", "view", str(path), "--port", "0", "--tokenizer", "embedded"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        try:
            if match is None:
                raise RuntimeError("the viewer didn't start")
            yield match[0].rstrip("/"), process.pid
        finally:
            process.terminate()


def resident_mb(process: int) -> float:
    """Resident memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def server_ms(process: int) -> float:
    """CPU time of the process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page_ms(session: Any) -> float:
    """CPU time of the page's main thread since its session started."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(metrics["TaskDuration"])


@dataclass
class Cost:
    """Wall-clock time, and CPU time of the server and of the page, each in ms."""

    clock: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    page: list[float] = field(default_factory=list)

    @contextmanager
    def counting(self, session: Any, process: int) -> Iterator[None]:
        """Count the costs within the context."""
        before = time.perf_counter(), server_ms(process), page_ms(session)
        yield
        self.clock.append(1000 * (time.perf_counter() - before[0]))
        self.server.append(server_ms(process) - before[1])
        self.page.append(page_ms(session) - before[2])

    def told(self) -> dict[str, float]:
        """Medians, and the maximum wall-clock time."""
        return {
            "clock": round(statistics.median(self.clock)),
            "greatest": round(max(self.clock)),
            "server": round(statistics.fmean(self.server)),
            "page": round(statistics.median(self.page)),
        }


def opened(browser: Any, url: str, selector: str, cost: Cost, process: int) -> Any:
    """The page at an address once it shows the element."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(300_000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    with cost.counting(session, process):
        page.goto(url)
        page.wait_for_selector(selector)
    return page


def heap_mb(page: Any) -> float:
    """JavaScript's heap after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def episode_figures(browser: Any, path: Path, repeats: int, turns: int) -> dict[str, Any]:
    memory = "#main .memory h2"
    cold, warm, step = Cost(), Cost(), Cost()
    with served(path) as (url, process):
        page = opened(browser, f"{url}/#/e/0/0/t/0", memory, cold, process)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        for turn in range(1, repeats + 1):
            with step.counting(session, process):
                page.evaluate(_TURN, turn)
        page.close()
        for at in range(repeats):
            page = opened(browser, f"{url}/#/e/0/0/t/{(at * 37 + 50) % (turns - 2)}", memory, warm, process)
            heap = heap_mb(page)
            page.close()
        return {
            "first paint, server cold": cold.told(),
            "first paint": warm.told(),
            "next turn": step.told(),
            "page MB": round(heap, 1),
            "server MB": round(resident_mb(process), 1),
        }


def table_figures(browser: Any, path: Path, repeats: int) -> dict[str, Any]:
    cold, warm = Cost(), Cost()
    with served(path) as (url, process):
        for at in range(repeats):
            page = opened(browser, f"{url}/#/r/run/s/1", "#main .vrow", warm if at else cold, process)
            heap = heap_mb(page)
            page.close()
        return {"rows, server cold": cold.told(), "rows": warm.told(), "page MB": round(heap, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=740)
    parser.add_argument("--tokens", type=int, default=3_500_000)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("PALIMPSEST_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        folder = Path(made)
        write_folder(folder, options.turns, options.tokens, options.episodes)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        figures = {
            "record MB": round((folder / "long.jsonl.zst").stat().st_size / 1e6, 2),
            "episode": episode_figures(browser, folder / "long.jsonl.zst", options.repeats, options.turns),
            "table": table_figures(browser, folder / "run", options.repeats),
        }
        browser.close()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
