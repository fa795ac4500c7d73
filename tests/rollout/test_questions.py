"""Several questions on one reading: what is asked, recorded, refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from palimpsest.config.schema import PolicyConfig, SamplingConfig
from palimpsest.errors import ConfigError, DataError
from palimpsest.memory.policy import Answered, MemoryPolicy, Model
from palimpsest.memory.registry import admit_all, build_policy, policy_class
from palimpsest.plugin_kinds import KINDS
from palimpsest.rollout.episode import play
from palimpsest.rollout.trajectory_file import encode_groups, read_groups
from palimpsest.types import Grade, Group, Outcome, Problem, Question, Trajectory
from support.agents import Script, base_codec, played
from support.fakes import LetterCodec, SeedSampler

ASKED = (Question("Who ran?", ("Anna",)), Question("Where did she\nrun?", ("Rome", "Roma")))
PROBLEM = Problem.asking("p", ASKED, "Anna ran.\nIt was in Rome.\n", {"evidence": ["Anna ran."]})
SMALL: dict[str, Any] = {
    "prompts": "short",
    "chunk_size": 6,
    "question_tokens": 40,
    "memory_tokens": 40,
    "answer_tokens": 20,
}
REPLIES = {
    "overwrite": " Anna, Rome",
    "recall": "<update> Anna, Rome</update>",
}
READING = [name for name in KINDS["policy"].shipped if policy_class(name).answers_questions and name in REPLIES]


def policy(name: str, **options: Any) -> MemoryPolicy:
    return build_policy(PolicyConfig(name=name, options={**SMALL, **options}))


def episode(name: str, problem: Problem = PROBLEM) -> tuple[Trajectory, Script]:
    def reply(prompt: str) -> str:
        if "Answer in" not in prompt:
            return REPLIES[name]
        return "\\boxed{Anna}" if "Who ran?" in prompt else "\\boxed{Rome}"

    return played(policy(name), [reply] * 20, problem)


@pytest.mark.parametrize("name", READING)
def test_a_document_is_read_once_and_every_question_is_answered_from_its_memory_alone(name: str) -> None:
    trajectory, script = episode(name)
    reads = [turn for turn in trajectory.turns if turn.name == "read"]
    answers = [turn for turn in trajectory.turns if turn.name == "answer"]
    decode = base_codec().decode
    assert len(answers) == 2
    assert all(decode(turn.piece("question") or ()) == "1. Who ran?\n2. Where did she run?" for turn in reads)
    assert [decode(turn.piece("question") or ()) for turn in answers] == [one.text for one in ASKED]
    assert {decode(turn.piece("memory") or ()) for turn in answers} == {" Anna, Rome"}
    assert [turn.notes["question"] for turn in answers] == [0, 1]
    assert trajectory.answers == ("\\boxed{Anna}", "\\boxed{Rome}")
    assert trajectory.answer == "1. \\boxed{Anna}\n2. \\boxed{Rome}"
    assert len(script.prompts) == len(reads) + 2


def test_the_answer_to_one_question_is_in_no_other_answers_prompt() -> None:
    _, script = episode("overwrite")
    assert "boxed{Anna}" not in script.text(-1)


def test_an_answer_that_is_cut_makes_the_episode_one_that_was_cut() -> None:
    trajectory, _ = played(policy("overwrite", answer_tokens=2), [" m"] * 20, PROBLEM)
    assert trajectory.outcome is Outcome.ANSWERED  # " m" and the stop token
    trajectory, _ = played(policy("overwrite", answer_tokens=1), [" m"] * 20, PROBLEM)
    assert trajectory.outcome is Outcome.ANSWER_TRUNCATED


def test_without_a_document_there_are_no_answers() -> None:
    trajectory, _ = episode("overwrite", Problem.asking("p", ASKED, " "))
    assert (trajectory.outcome, trajectory.answer, trajectory.answers) == (Outcome.EMPTY_CONTEXT, None, ())


@pytest.mark.parametrize("name", ["retrieval", "prune"])
def test_a_policy_that_answers_one_question_is_refused_with_those_that_answer_several(name: str) -> None:
    options = {} if name == "prune" else {"prompts": "short", "question_tokens": 40}
    single = build_policy(PolicyConfig(name=name, options=options))
    with pytest.raises(ConfigError, match=r"policy.name: \w+ answers one question and problem p has 2; .*overwrite"):
        admit_all(single, [PROBLEM], base_codec(), 100_000)


def test_questions_that_are_too_long_together_are_refused() -> None:
    length = len(base_codec().encode(PROBLEM.question))
    admit_all(policy("overwrite", question_tokens=length), [PROBLEM], base_codec(), 4000)
    tight = policy("overwrite", question_tokens=length - 1)
    with pytest.raises(DataError, match=rf"its 2 questions have {length} tokens, policy.options.question_tokens="):
        admit_all(tight, [PROBLEM], base_codec(), 4000)


@pytest.mark.parametrize(
    ("answered", "problem", "says"),
    [
        (Answered("yes"), PROBLEM, "Answered.answers is empty, the problem asks 2"),
        (Answered("yes", answers=("yes",)), PROBLEM, "has 1, the problem asks 2"),
        (Answered("yes", answers=("yes",)), Problem("q", "?", ("a",)), "has 1, the problem asks 0"),
    ],
)
def test_a_policy_that_answers_another_number_of_questions_fails(
    answered: Answered, problem: Problem, says: str
) -> None:
    class Wrong(MemoryPolicy):
        async def run(self, problem: Problem, model: Model) -> Answered:
            return answered

    trajectory = asyncio.run(
        play(
            problem,
            policy=Wrong(),
            sampler=SeedSampler(),
            codec=LetterCodec(),
            sampling=SamplingConfig(),
            key=(0,),
            group_id="g",
            rollout=0,
        )
    )
    assert trajectory.outcome is Outcome.POLICY_FAILED
    assert says in trajectory.events[-1].detail["message"]


def test_a_record_gives_questions_and_answers_back(tmp_path: Path) -> None:
    trajectory, _ = episode("overwrite")
    group = Group(PROBLEM, (trajectory,), (Grade(0.5),))
    (tmp_path / "g.jsonl.zst").write_bytes(encode_groups([group]))
    (back,) = read_groups(tmp_path / "g.jsonl.zst").groups
    assert back.problem.questions == ASKED
    assert back.trajectories == (trajectory,)


def test_a_problem_of_one_question_is_a_plain_one() -> None:
    plain = Problem.asking("p", ASKED[:1], "text")
    assert plain == Problem("p", "Who ran?", ("Anna",), "text")
    assert plain.by_question == (plain,)


def test_a_problem_whose_question_is_not_that_of_its_questions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"problem p: .*Problem.asking"):
        Problem("p", "Who ran?", ("Anna",), questions=ASKED)
