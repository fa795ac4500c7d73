"""Records are imitated by models that read their token ids as the same text, and rejected for others."""

from __future__ import annotations

from pathlib import Path

from palimpsest import evaluate, train
from palimpsest.evaluation.episode_files import EPISODES
from palimpsest.rollout.trajectory_file import NO_TOKENIZER, encode_groups, read_groups
from palimpsest.text.codec import Codec
from support.command import Run
from support.endpoint_server import Server, endpoint_server
from support.small_run import small_run

BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 64, "answer_tokens": 8}
RECORDED = {**BUDGETS, "evaluation.record": "all"}


def imitated(palimpsest: Run, records: Path, model: Path | str, out: Path) -> tuple[int, str]:
    settings = ("train.max_steps=1", "train.batch_size=1", "train.num_minibatches=1", f"model.path={model}")
    done = palimpsest("sft", "memagent-quickstart", "--from", str(records), *settings, "--out", str(out))
    return done.returncode, done.stderr


def test_records_of_a_chat_endpoint_are_rejected_by_the_tokenizer_that_they_name(
    tmp_path: Path, tiny_model_folder: Path, palimpsest: Run
) -> None:
    out = tmp_path / "e"
    with endpoint_server(Server(takes="chat")) as server:
        asked = ("eval", "served", "--base-url", server.url, "--tokenizer", str(tiny_model_folder))
        settings = [f"{key}={value}" for key, value in RECORDED.items()]
        done = palimpsest(*asked, "--chunks", "2", "--limit", "2", "--no-baselines", *settings, "--out", str(out))
    assert done.returncode == 0, done.stderr
    for model in (tiny_model_folder, "embedded"):
        code, said = imitated(palimpsest, out / EPISODES, model, tmp_path / "sft")
        assert code == 2
        assert "its token ids belong to another tokenizer" in said
    assert not (tmp_path / "sft").exists()


def test_records_of_an_endpoint_that_name_no_tokenizer_are_rejected(
    tmp_path: Path, tiny_model_folder: Path, palimpsest: Run
) -> None:
    out = tmp_path / "e"
    with endpoint_server(Server(takes="chat")) as server:
        asked = ("eval", "served", "--base-url", server.url, "--chunks", "2", "--limit", "2")
        settings = [f"{key}={value}" for key, value in RECORDED.items()]
        assert palimpsest(*asked, "--no-baselines", *settings, "--out", str(out)).returncode == 0
    file = out / EPISODES
    file.write_bytes(encode_groups(read_groups(file).groups))  # as earlier versions wrote it
    assert read_groups(file).tokenizers == {NO_TOKENIZER}
    code, said = imitated(palimpsest, file, "embedded", tmp_path / "sft")
    assert code == 2
    assert "an endpoint (mode chat) sampled it, and it names no tokenizer" in said


def test_records_of_a_model_are_imitated_by_models_of_its_tokenizer_alone(
    tmp_path: Path, tiny_model_folder: Path, palimpsest: Run
) -> None:
    run = tmp_path / "run"
    train("memagent-quickstart", small_run(tiny_model_folder), out=run, quiet=True)
    evaluate(tiny_model_folder, chunks=1, limit=1, overrides=RECORDED, baselines=False, out=tmp_path / "e", quiet=True)
    own = Codec.load(str(tiny_model_folder)).digest
    assert read_groups(tmp_path / "e" / EPISODES).tokenizers == {own}
    file = tmp_path / "e" / EPISODES
    for number, records in enumerate((run, run / "trajectories", file, file.parent)):
        code, said = imitated(palimpsest, records, "embedded", tmp_path / f"other{number}")
        assert code == 2
        assert "token ids" in said
        assert own in said
        code, said = imitated(palimpsest, records, tiny_model_folder, tmp_path / f"own{number}")
        assert code == 0, said
    unnamed = tmp_path / "apart" / "unnamed.jsonl.zst"
    unnamed.parent.mkdir()
    for content in (
        encode_groups(read_groups(file).groups),
        file.read_bytes() + encode_groups(read_groups(file).groups),
    ):
        unnamed.write_bytes(content)
        code, said = imitated(palimpsest, unnamed, tiny_model_folder, tmp_path / "none")
        assert code == 2
        assert "names no tokenizer" in said
