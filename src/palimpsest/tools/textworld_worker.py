"""A process that makes and plays TextWorld games: a JSON object per line in, one per line out.

    {"make": PATH, "family": "coins", "difficulty": 4, "seed": 7}      -> {"objective": ..., "walkthrough": [...], ...}
    {"reset": PATH, "game": 3, "commands": false}                      -> state of game 3
    {"step": "go west", "game": 3}                                     -> its next state
    {"close": true, "game": 3}                                         -> {}

An error is {"error": text}. It runs as a script, without the package, and ends with its parent.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

NOTES = "notes"
FAMILIES = {NOTES: "", "coins": "tw-coin_collector", "treasure": "tw-treasure_hunter", "cooking": "tw-cooking"}
HARDEST = {NOTES: 32, "coins": 50, "treasure": 30, "cooking": 5}
"""Greatest difficulty of a family."""
_ROOMS = (1, 1, 6, 9, 12)  # of a cooking game, by difficulty
_PLACES = str.split("""
    Hall Study Cellar Attic Scullery Library Workshop Garage Vault Closet Gallery Kitchen Office Chapel Stable Tower
    Bakery Garden Lobby Nursery Laundry Balcony Terrace Den Lounge Shed Barn Crypt Sauna Foyer Bedroom Canteen Studio
""")
"""Names of rooms; TextWorld replaces those that begin with P or I."""
_THINGS = str.split("lamp coin key book cup hat pen ring rope bell")
_CHOICES = 4
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
_TRACE = re.compile(r"\[[^]]+\]\n?")  # as TextWorld removes it
_STATUS = re.compile(r"\s*>\s+-= [^\n]* =-\s*-?\d+/\d+\s*$")


def settings(family: str, difficulty: int, seed: int) -> dict[str, Any]:
    """Settings of a TextWorld challenge.

    notes (ours): a note in the first room names one of several things in the last room, `difficulty` moves away;
    taking another loses. coins: the coin is `difficulty` moves away, with as many more rooms next to the way.
    treasure: the level. cooking: that many ingredients, some to be found, cut and cooked, in up to 12 rooms.
    """
    if family == "cooking":
        chores = {"open": True, "cook": difficulty > 1, "cut": difficulty > 2, "drop": difficulty > 4}
        rooms = {"go": _ROOMS[difficulty - 1], "take": (difficulty + 1) // 2, "recipe": difficulty}
        return {**chores, **rooms, "recipe_seed": seed, "split": None}
    return {"level": 100 + difficulty if family == "coins" else difficulty}


def make(path: str, family: str, difficulty: int, seed: int) -> dict[str, Any]:
    """Make the game in a file at `path`."""
    import textworld
    from textworld.challenges import CHALLENGES
    from textworld.generator import compile_game

    options = textworld.GameOptions()
    options.seeds, options.path, options.force_recompile = seed, path, True
    options.grammar.only_last_action = True  # the objective is not the way to it
    if family == NOTES:
        game, walkthrough = notes_game(options, difficulty, random.Random(seed))
        objective = "Take what the note names."
    else:
        game = CHALLENGES[FAMILIES[family]][1](settings(family, difficulty, seed), options)
        objective, walkthrough = game.objective, list(game.walkthrough)
    compile_game(game, options)
    Path(path).with_suffix(".ni").unlink(missing_ok=True)
    return {"objective": objective, "walkthrough": walkthrough}


def notes_game(options: Any, length: int, rng: random.Random) -> tuple[Any, list[str]]:
    """A game of the family `notes`, `length` moves long, and its walkthrough."""
    import textworld
    from textworld.generator.game import Event, Quest

    maker = textworld.GameMaker(options)
    rooms = [maker.new_room(name) for name in rng.sample(_PLACES, length + 1)]
    path, back = list[str](), ""
    for room, following in itertools.pairwise(rooms):
        way = rng.choice([side for side in _BACK if side != back])
        maker.connect(getattr(room, way), getattr(following, _BACK[way]))
        room.infos.desc = f"The way leads {way}."
        path.append(way)
        back = _BACK[way]
    rooms[-1].infos.desc = "The way ends."
    maker.set_player(rooms[0])
    names, right = rng.sample(_THINGS, _CHOICES), rng.randrange(_CHOICES)  # rooms list their things in order
    things = [maker.new(type="o", name=name) for name in names]
    rooms[-1].add(*things)
    note = maker.new(type="o", name="note")
    note.infos.desc = f"The note says: take the {names[right]}."
    rooms[0].add(note)
    taken = [Event(conditions={maker.new_fact("in", thing, maker.inventory)}) for thing in things]
    winning = taken.pop(right)
    maker.quests = [Quest(win_events=[winning], fail_events=taken)]
    return maker.build(), ["examine note", *(f"go {way}" for way in path), f"take {names[right]}"]


def shown(text: str) -> str:
    """An observation without the trace of actions, the status line, blank lines and runs of blanks.

    >>> shown("\\n[looking]\\n-= Hall =-\\nA  hall.\\n[looking - succeeded]\\n\\n>                  -= Hall =-0/1")
    '-= Hall =-\\nA hall.'
    """
    lines = (" ".join(line.split()) for line in _STATUS.sub("", _TRACE.sub("", text)).splitlines())
    return "\n".join(line for line in lines if line)


_STATE = ("score", "max_score", "won", "lost")


def state_of(state: Any, text: str) -> dict[str, Any]:
    return {
        "text": shown(text),
        "done": " - succeeded]" in state["raw"],  # the game carried the command out
        "commands": state.get("admissible_commands", ()),
        **{name: state[name] for name in _STATE},
    }


def main() -> None:
    """Answer requests until the end of the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints of libraries must not mix with the answers
    import textworld

    games: dict[int, Any] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if path := request.get("make"):
            return make(path, request["family"], request["difficulty"], request["seed"])
        number = request["game"]
        if path := request.get("reset"):
            wanted = {**dict.fromkeys(_STATE, True), "admissible_commands": request["commands"]}  # which are slow
            games[number] = textworld.start(path, textworld.EnvInfos(**wanted))
            state = games[number].reset()
            if not request["commands"]:  # which turn the trace on
                games[number].step("tw-trace-actions")
            return state_of(state, state["feedback"][state["feedback"].find("-= ") :])  # after the banner
        if "step" in request:
            state, _, _ = games[number].step(request["step"])
            return state_of(state, state["feedback"])
        if (game := games.pop(number, None)) is not None:
            game.close()
        return {}

    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  the parent reports it
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
