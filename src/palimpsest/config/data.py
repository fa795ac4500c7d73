"""Sections of a configuration: where problems come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from palimpsest.config.section import Strict, check_name
from palimpsest.errors import nearest
from palimpsest.plugin_kinds import KINDS

SEEDS = "seeds"
"""The source of an environment that makes its own tasks."""
GENERATED = ("synthetic", "synthetic_search", SEEDS)
"""Sources that generate their problems."""
LONGEST = 100_000
"""Maximum number of chunks of a synthetic document."""


Value = TypeVar("Value")
OneOrMore = Annotated[
    tuple[Value, ...], BeforeValidator(lambda value: (value,) if isinstance(value, int | float | str) else value)
]
"""One number or name, or a list."""

Task = Literal["needle", "two_hops", "updates", "list", "count", "several", "contradiction"]
"""Families of synthetic questions (data/synthetic/families.py)."""


def columns_of(value: Any) -> Any:
    """Columns by our name, from a mapping or a text; a file's name limits an entry to that file.

    >>> columns_of("question=q, answers=gold.text, b.csv:question=text")
    {'question': 'q', 'answers': 'gold.text', 'b.csv:question': 'text'}
    """
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
    if not all(ours.strip() and theirs.strip() for ours, _, theirs in pairs):
        raise ValueError(
            f"data.columns={value}: expected pairs of our column and the file's, e.g. question=q,answers=gold"
        )
    columns = dict[str, str]()
    for ours, theirs in ((ours.strip(), theirs.strip()) for ours, _, theirs in pairs):
        if columns.setdefault(ours, theirs) != theirs:
            raise ValueError(f"data.columns={value}: {ours} can't be both {columns[ours]} and {theirs}; name one")
    return columns


def columns_for(file: str | Path, columns: Mapping[str, str]) -> dict[str, str]:
    """Columns of one file: entries for the file or its folder, then entries for all files.

    >>> columns_for("./b.csv", {"question": "q", "answers": "a", "b.csv:question": "text", "c.csv:answers": "gold"})
    {'question': 'text', 'answers': 'a'}
    """
    split = [(key.rpartition(":"), theirs) for key, theirs in columns.items()]
    places = {Path(file), *Path(file).parents}
    of_all = {ours: theirs for (name, _, ours), theirs in split if not name}
    return of_all | {ours: theirs for (name, _, ours), theirs in split if name and Path(name) in places}


def check_columns(columns: Mapping[str, str], files: Iterable[str | Path]) -> None:
    """Raise ValueError for columns of a file that isn't among `files`."""
    names = {Path(file): str(file) for file in files}
    for name, _, ours in (key.rpartition(":") for key in columns):
        if name and Path(name) not in names:
            raise ValueError(f"data.columns {name}:{ours}: no file has the name {name}{nearest(name, names.values())}")


def _alone(value: Any) -> Any:
    """The only element of a one-element list; other values unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


Sources = Annotated[str | tuple[str, ...], BeforeValidator(_alone)]
"""One, or several files."""


def listed(sources: Sources) -> tuple[str, ...]:
    """Every source, one at least."""
    return (sources,) if isinstance(sources, str) else sources


class StartsConfig(Strict):
    """Shares of training documents that begin with a memory, as the middle of a long document does; the others, and all
    documents of evaluation, begin with none."""

    evidence: float = Field(0.0, ge=0, le=1)
    """The evidence itself, which the document then lacks."""
    other: float = Field(0.0, ge=0, le=1)
    """Facts that have nothing to do with the question."""

    @model_validator(mode="after")
    def _shares(self) -> StartsConfig:
        if (total := self.evidence + self.other) > 1:
            raise ValueError(
                f"data.synthetic.starts: evidence and other are shares of the documents with sum {total:g}: lower "
                "it to at most 1"
            )
        return self


class SyntheticConfig(Strict):
    """The shipped synthetic documents: templated facts, distractors and near misses."""

    chunks: int = Field(4, ge=1, le=LONGEST)
    """Paragraphs per document; the quickstart's policy reads one a turn."""
    facts_per_chunk: int = Field(5, ge=1, le=32)
    """Sentences per paragraph."""
    task: OneOrMore[Task] = ("needle",)
    """Family of questions: needle, one fact; two_hops, a fact about a person whom another fact names; updates, the last
    of two or three statements; list, all of two or three values; count, their number; several, two or three questions;
    contradiction, whether two statements agree. A list: each training document draws one."""
    val_task: OneOrMore[Task] | None = None
    """Families of evaluations, each with its own row; null: as in training."""
    distractor_facts: OneOrMore[int] = (4,)
    """Sentences about the same person, or of the same relation, as the evidence, however long the document: one number,
    or several of which each training document draws one and evaluation has the last."""
    starts: StartsConfig | None = None
    """Memories that training documents begin with; null: none."""
    competing_facts: OneOrMore[float] = (0.0,)
    """Share of the other sentences that state the last hop's relation for other people, so that each might be evidence.
    One share, or a list: each training document draws one, evaluation uses the last."""
    order: Literal["any", "forward", "reverse"] = "any"
    """Order of the evidence: any, first hop first, last hop first."""
    min_distance: int = Field(0, ge=0)
    """Minimum paragraphs between neighbouring pieces of evidence; shorter documents use the largest that fits."""

    @property
    def evaluated(self) -> tuple[Task, ...]:
        """Families of evaluations."""
        return self.val_task or self.task

    @model_validator(mode="after")
    def _lists(self) -> SyntheticConfig:
        for key, names in (("task", self.task), ("val_task", self.val_task)):
            if names is not None and not (names and len(set(names)) == len(names)):
                raise ValueError(f"data.synthetic.{key}={list(names)}: name one family or several, each once")
        if not self.distractor_facts or not all(0 <= number <= 1000 for number in self.distractor_facts):
            used = list(self.distractor_facts)
            raise ValueError(f"data.synthetic.distractor_facts={used}: use numbers from 0 to 1000, e.g. 4 or [0, 2, 4]")
        if not self.competing_facts or not all(0 <= share <= 1 for share in self.competing_facts):
            shares = list(self.competing_facts)
            raise ValueError(f"data.synthetic.competing_facts={shares}: use shares from 0 to 1, e.g. 0.25 or [0.25, 0]")
        return self


class SearchDataConfig(Strict):
    """Search problems: templated facts in a corpus of each problem's own, or the questions of a file, combined."""

    objectives: OneOrMore[int] = (1, 2, 4)
    """Questions per problem, each with its own answer: one number, or a list to draw from."""
    people: int = Field(24, ge=2, le=300)
    """synthetic_search: passages of a problem's corpus, one a person."""
    facts_per_passage: int = Field(3, ge=1, le=15)
    """synthetic_search: facts of a passage, of different relations."""

    @model_validator(mode="after")
    def _people_for_all(self) -> SearchDataConfig:
        if not self.objectives or min(self.objectives) < 1:
            raise ValueError(f"data.search.objectives={list(self.objectives)}: use numbers of at least 1, e.g. [1, 2]")
        if (needed := max(self.objectives)) > self.people:
            raise ValueError(
                f"data.search.objectives={needed} ask about {needed} people, data.search.people={self.people}: raise "
                f"it to {needed} at least"
            )
        return self


class CurriculumConfig(Strict):
    """Synthetic documents grow as the agent improves."""

    chunks: tuple[int, ...] = Field(min_length=1)
    """Their lengths, e.g. [1, 2, 4]."""
    advance_at: float = Field(0.85, ge=0, le=1)
    """Mean reward, over two successive steps at the present length, that moves on to the next."""

    @field_validator("chunks")
    @classmethod
    def _lengths(cls, chunks: tuple[int, ...]) -> tuple[int, ...]:
        if chunks and not 1 <= min(chunks) <= max(chunks) <= LONGEST:
            raise ValueError(f"data.curriculum.chunks={[*chunks]}: use numbers from 1 to {LONGEST:,}, e.g. [1, 2, 4]")
        return chunks


class DataConfig(Strict):
    train_files: Sources = "synthetic"
    """`synthetic`, `synthetic_search`, `seeds` for an environment that makes its tasks, a file of any known format, a
    folder of text files with questions, `hub:owner/name@split`, or several of these as a list."""
    format: str | None = None
    """Format of files: a shipped format, or my_module:MyFormat; None: detected from the columns."""
    columns: Annotated[dict[str, str], BeforeValidator(columns_of)] = Field(default_factory=dict)
    """Renamed columns of files, our name first: `{question: q, answers: reward.gold}`; dots address nested objects.
    `b.csv:question` applies to that file only."""
    on_missing_gold: Literal["refuse", "skip"] = "refuse"
    """A row without its gold paragraph: `refuse` rejects the file, `skip` drops and counts the row."""
    format_options: dict[str, Any] = Field(default_factory=dict)
    """Options of a custom format."""
    val_files: Sources | None = None
    """File, or several, that evaluation during training reads; null: problems of `data.train_files`."""
    documents: int | None = Field(None, ge=1)
    """Documents per assembled context (gold paragraphs plus distractors); None: as the file has them."""
    order: Literal["any", "forward", "reverse"] = "any"
    """Order of the gold paragraphs in assembled contexts: any, as in the file (its reasoning order), reversed."""
    min_distance: int = Field(0, ge=0)
    """Minimum number of documents between gold paragraphs in assembled contexts."""
    corpus: str | None = None
    """File whose paragraphs join the distractors, or that document indices refer to."""
    split_questions: bool = False
    """Make each question of a problem a separate problem, which reads the document again; false: one reading answers
    all of them, with all questions in the prompts."""
    limit: int | None = Field(None, ge=1)
    """Number of problems used from the start of each file."""
    shuffle: bool = True
    """Shuffle a file's training rows each epoch; false: file order, except for groups that dynamic sampling adds."""
    synthetic: SyntheticConfig = SyntheticConfig()
    search: SearchDataConfig | None = None
    """Sizes of `synthetic_search`. With a file: combine its questions, without their contexts, into problems with this
    many objectives, answered by searching a corpus. None: use the file unchanged."""
    curriculum: CurriculumConfig | None = None

    @property
    def files(self) -> list[str]:
        """Files of the problems and their corpus, each once; without generated and hub sources."""
        sources = (*listed(self.train_files), *listed(self.val_files or ()), *listed(self.corpus or ()))
        return [name for name in dict.fromkeys(sources) if name not in GENERATED and not name.startswith("hub:")]

    @field_validator("format")
    @classmethod
    def _check_format(cls, format: str | None) -> str | None:
        return format and check_name("format", format)

    @model_validator(mode="after")
    def _format_of_a_file(self) -> DataConfig:
        if self.format is not None and {self.train_files, self.val_files or self.train_files} <= {*GENERATED}:
            raise ValueError(
                f"data.format={self.format} is of files, data.train_files={self.train_files} has none: set "
                "data.train_files to a file, or data.format=null"
            )
        if (self.documents or self.corpus) and self.train_files == "synthetic" and self.val_files in (None, *GENERATED):
            raise ValueError(
                "data.documents and data.corpus make contexts of a file's paragraphs, data.train_files=synthetic has "
                "none: unset them, data.synthetic.chunks is the length of its documents; or set data.train_files to a "
                "file"
            )
        if self.format_options and self.format in (None, *KINDS["format"].shipped):
            raise ValueError("data.format_options need a custom format: set data.format, or drop them")
        return self

    @model_validator(mode="after")
    def _several_files(self) -> DataConfig:
        for name, sources in (("train_files", self.train_files), ("val_files", self.val_files or "-")):
            names = listed(sources)
            if not all(names) or len(set(names)) < max(1, len(names)):
                raise ValueError(f"data.{name}={list(names)}: name a file, or a list of different files")
            if len(names) > 1 and not set(names).isdisjoint(GENERATED):
                raise ValueError(f"data.{name}={list(names)}: a list may contain only files")
        check_columns(self.columns, (*listed(self.train_files), *listed(self.val_files or ())))
        return self

    @model_validator(mode="after")
    def _one_kind_of_problem(self) -> DataConfig:
        searched = self.search is not None or self.train_files == "synthetic_search"
        if searched and self.train_files == "synthetic":
            raise ValueError(
                "data.search makes search problems, data.train_files=synthetic documents: set "
                "data.train_files=synthetic_search or data.search=null"
            )
        if searched and (self.documents is not None or self.corpus is not None):
            raise ValueError(
                "data.documents and data.corpus make contexts, search problems have none: unset them; set the tool's "
                "corpus, policy.options.tools.search.source"
            )
        if self.curriculum is not None and (searched or self.train_files != "synthetic"):
            raise ValueError(
                "data.curriculum sets the length of synthetic documents: set data.train_files=synthetic, or "
                "data.curriculum=null"
            )
        return self

    @model_validator(mode="after")
    def _order_of_a_file(self) -> DataConfig:
        if not self.shuffle and (self.train_files in GENERATED or self.search is not None):
            raise ValueError(
                "data.shuffle=false reads the rows of a file in order, but these problems are random draws: "
                "set data.shuffle=true, or data.train_files to a file and data.search=null"
            )
        return self


# ---- Published files -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """A published file."""

    path: str
    """OWNER/NAME/FILE of the hub, or a URL."""
    licence: str = "not known here: ask its page"

    @property
    def file(self) -> str:
        """File name."""
        return self.path.rpartition("/")[2]


_MEMAGENT, _HOTPOT = "BytedTsinghua-SIA/hotpotqa", "CC BY-SA 4.0 (HotpotQA, Yang et al. 2018)"
_MEMACT = "https://github.com/YuxiangZhang0114/MemAct-Anonymized/raw/9b65b84aeab76475f33da3f400d7049123dc4648/DCPO/data"
_EVALS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)
PUBLISHED: Mapping[str, Published] = {
    "memagent-train": Published(f"{_MEMAGENT}/hotpotqa_train_32k.parquet", _HOTPOT),
    "memagent-dev": Published(f"{_MEMAGENT}/hotpotqa_dev.parquet", _HOTPOT),
    **{f"memagent-eval-{n}": Published(f"{_MEMAGENT}/eval_{n}.json", _HOTPOT) for n in _EVALS},
    "memact-train": Published(f"{_MEMACT}/wiki_train_multi_object_2_3.parquet", "MIT"),
    "memact-dev": Published(f"{_MEMACT}/wiki_val_multi_object_2_3.parquet", "MIT"),
    "hotpotqa-train": Published("https://curtis.ml.cmu.edu/datasets/hotpot/hotpot_train_v1.1.json", _HOTPOT),
    "hotpotqa-dev": Published("https://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json", _HOTPOT),
    "squad-dev": Published(
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
        "CC BY-SA 4.0 (SQuAD, Rajpurkar et al. 2018)",
    ),
}


_WIKI = "palimpsest data download hotpotqa-dev; palimpsest data wiki data/hotpot_dev_distractor_v1.json --out data/wiki"
MADE: Mapping[str, str] = {"data/wiki/train.jsonl": _WIKI, "data/wiki/dev.jsonl": _WIKI}
"""Commands that make files of shipped recipes."""


def how_to_get(file: str | Path) -> str:
    """The command that fetches or makes `file` at its place; empty for unknown files.

    >>> how_to_get("data/hotpot_train_v1.1.json"), how_to_get("mine.json")
    ('palimpsest data download hotpotqa-train --out data', '')
    """
    name = next((name for name, published in PUBLISHED.items() if published.file == Path(file).name), None)
    return MADE.get(str(file), "") if name is None else f"palimpsest data download {name} --out {Path(file).parent}"
