"""A script that poses as a Python with vLLM: it starts the scripted server at the socket of its arguments.

python -m vllm.entrypoints.openai.api_server --model FOLDER --uds SOCKET ...
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from support.vllm_wire import reply, wire

SCRIPT = """#!{python}
import sys
if sys.argv[1] == "-c":
    print("True 2.13.0+cpu")
    sys.exit()
sys.path.insert(0, {tests!r})
from support.vllm_process import serve
serve()
"""


def pretender(folder: Path) -> str:
    """Path of the interpreter."""
    script = folder / "python"
    script.write_text(SCRIPT.format(python=sys.executable, tests=str(Path(__file__).parents[1])))
    script.chmod(0o755)
    return str(script)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in `folder`."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def serve() -> None:
    """Run until killed; `/seen` returns the command and the digests of the weights."""
    words = sys.argv[1:]

    async def run() -> None:
        async with wire(words[words.index("--uds") + 1]) as state:

            def facts(_: dict[str, Any]) -> bytes:
                folder = state.loaded[-1] if state.loaded else words[words.index("--model") + 1]
                at = Path(folder).resolve()
                values = {"pid": os.getpid(), "folder": str(at), "files": digests(at), "words": words}
                return reply(200, values | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})

            state.faults["/seen"] = facts
            await asyncio.Event().wait()

    print(json.dumps(words), flush=True)
    asyncio.run(run())
