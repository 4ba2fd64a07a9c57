"""The parameters: what each key of params.yaml means, which values it may have, and which stage reads it.

One frozen class a stage; dvc.yaml lists exactly its fields. `python -m stages.params` prints the JSON schema that
editors use.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from stages import paths
from stages.errors import ParamError, nearest
from stages.params_conflicts import conflicts


def _number(value: Any) -> int | float:
    """The number that `value` is or spells ('4e3', '1e-08'); a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    number = (
        value if not isinstance(value, str) else int(value) if value.strip().lstrip("+-").isdigit() else float(value)
    )
    if not abs(number) <= sys.float_info.max:  # which compares whole numbers of any length
        raise ValueError("not finite")
    return number


def _whole(value: Any) -> int:
    """A whole number in any lossless spelling: 4000, 4000.0, '4e3'."""
    number = _number(value)
    if number != int(number):
        raise ValueError("not whole")
    return int(number)


def _real(value: Any) -> float:
    return float(_number(value))


def _text(value: Any) -> str:
    """Text; a bare number in YAML is taken as the text it was written as."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("not text")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, BeforeValidator(_real)]
Text = Annotated[str, BeforeValidator(_text)]


class Settings(BaseModel):
    """Frozen, no unknown keys, defaults checked as well."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class TextParams(Settings):
    """What all that normalises text reads."""

    lowercase: bool = Field(True, strict=True, description="fold the text to lower case")
    unit: Literal["line", "paragraph", "document", "stream"] = Field(
        "line", description="what counts as a sentence: a line, a paragraph, a whole file; or one running text of all"
    )
    normalisation: Literal["NFC", "NFD", "NFKC", "NFKD", "none"] = Field(
        "NFC", description="Unicode normal form that the text is brought to"
    )


class CorpusParams(Settings):
    """What all that has to know where the text is from reads."""

    corpus: Text = Field(
        "data/raw/notebook.txt", min_length=1, description="path of a text, a table, or a folder of them; or grammar"
    )
    grammar_depth: Whole = Field(2, ge=0, le=3, description="corpus: grammar: relative clauses inside each other")


class PrepareParams(CorpusParams, TextParams):
    """What `prepare` reads."""

    encoding: Text = Field("utf-8", min_length=1, description="how the bytes of the text spell its characters")
    text_column: Text = Field("", description="TSV, CSV: column with the text, by its name or number from 1")
    text_field: Text = Field("text", min_length=1, description="JSONL: key of the text")
    grammar_sentences: Whole = Field(5000, ge=1, description="corpus: grammar: sentences to draw")
    grammar_seed: Whole = Field(0, ge=0, lt=2**32, description="corpus: grammar: which sentences are drawn")
    valid_fraction: Real = Field(0.0, ge=0, lt=1, description="share of the distinct sentences held out for validation")
    test_fraction: Real = Field(0.0, ge=0, lt=1, description="share of the distinct sentences held out for the test")
    split_seed: Whole = Field(0, ge=0, lt=2**32, description="which sentences are held out")


class VocabParams(TextParams):
    """What `vocab` reads."""

    tokenizer: Literal["word", "word_punct", "char", "byte", "bpe", "unigram"] = Field(
        "word",
        description="what a token is: a word between spaces; a word or a punctuation mark; a character; a byte; "
        "a piece learned from the text",
    )
    vocab_order: Literal["frequency", "first_appearance"] = Field(
        "first_appearance", description="order of the ids: by frequency, then code point; or as the tokens first appear"
    )
    min_count: Whole = Field(1, ge=1, description="tokens rarer than this in the training text become [unk]")
    max_vocab: Whole = Field(0, ge=0, description="at most this many tokens, the most frequent ones; 0 for no limit")


class ArithmeticParams(Settings):
    """What both stages that compute with torch read."""

    numerics: Literal["portable", "native"] = Field(
        "portable", description="portable: the same bytes on other x86-64 machines with AVX2; native: all speed"
    )
    threads: Whole = Field(1, ge=1, le=256, description="shards or batches computed at once; no result depends on it")


class TrainParams(ArithmeticParams):
    """What `train` reads."""

    d_model: Whole = Field(128, ge=2, description="width of the model, an even number")
    layers: Whole = Field(1, ge=1, description="number of blocks")
    n_heads: Whole = Field(5, ge=1, description="attention heads a block")
    heads: Literal["full", "split"] = Field(
        "full", description="width of a head: d_model (the notebook's), or d_model / n_heads"
    )
    hidden: Whole = Field(128, ge=1, description="width of the feed-forward layer")
    block: Literal["notebook", "post", "pre"] = Field(
        "notebook",
        description="where the normalisation sits: the notebook's x + norm(h), norm(x + f(x)), x + f(norm(x))",
    )
    positions: Literal["paper", "notebook"] = Field(
        "notebook", description="divisor of the sinusoids: 10000^(j/d), or the notebook's 10000^(2j/d)"
    )
    activation: Literal["relu", "gelu"] = Field("relu", description="non-linearity of the feed-forward layer")
    dropout: Real = Field(0.3, ge=0, lt=1, description="share of activations dropped while training")
    tied_output: bool = Field(False, strict=True, description="output layer shares the embedding's weights")
    init: Literal["torch", "xavier"] = Field("torch", description="initial weights: torch's own, or Xavier's")
    loss: Literal["cross_entropy", "notebook"] = Field(
        "cross_entropy", description="cross-entropy of the logits, or the notebook's second softmax before it"
    )
    optimizer: Literal[
        "adam",
        "adamw",
        "nadam",
        "radam",
        "adafactor",
        "muon",
        "sgd",
        "adagrad",
        "lion",
        "soap",
        "ademamix",
        "prodigy",
        "schedulefree",
    ] = Field(
        "adam",
        description="what updates the weights; muon: the matrices of the blocks, AdamW the rest; from lion on: of the "
        "extra noam-lab[optimizers]",
    )
    schedule: Literal["noam", "inverse_sqrt", "constant", "cosine", "linear", "wsd", "none"] = Field(
        "noam",
        description="learning rate: noam; after a ramp to `lr`: inverse_sqrt, constant, cosine, linear, wsd (constant, "
        "then a fall); none: `lr` throughout",
    )
    counting: Literal[
        "paper",
        "annotated",
        "tensor2tensor",
        "tensor2tensor_legacy",
        "espnet",
        "opennmt",
        "allennlp",
        "fairseq",
        "transformers",
    ] = Field("paper", description="how updates are numbered and rates scaled: as in the paper, or as a toolkit does")
    warmup: Whole = Field(40000, ge=1, description="updates until the peak rate; for no warm-up use schedule: none")
    factor: Real = Field(1.0, gt=0, description="multiplies the rate of the noam schedule")
    lr: Real = Field(0.001, gt=0, description="peak rate of the other schedules")
    min_lr: Real = Field(0.0, ge=0, description="rate of the last update of cosine, linear and wsd")
    decay_fraction: Real = Field(0.2, gt=0, le=1, description="share of all updates in which wsd falls")
    beta1: Real = Field(0.9, ge=0, lt=1, description="decay of the first moment (momentum of sgd and muon)")
    beta2: Real = Field(0.98, ge=0, lt=1, description="decay of the second moment (of lion: of its only one)")
    eps: Real = Field(1e-9, gt=0, description="added to the denominator")
    decay: Real = Field(0.0, ge=0, description="weight decay")
    decay_form: Literal["usual", "l2", "decoupled"] = Field(
        "usual",
        description="decay in the gradient (l2), beside the update (decoupled), or as the optimiser's name means",
    )
    clip: Real = Field(0.0, ge=0, description="largest norm of the gradient; 0 for no clipping")
    epochs: Whole = Field(300, ge=1, description="passes over the training text")
    max_updates: Whole = Field(0, ge=0, description="end after this many updates, if epochs has not; 0 for no limit")
    batches: Literal["shuffled", "bucketed", "packed"] = Field(
        "shuffled",
        description="sentences in any order, sentences of like length together, or windows of `context` tokens",
    )
    context: Whole = Field(64, ge=1, description="tokens of a window (batches: packed)")
    batch_size: Whole = Field(1, ge=1, description="sentences or windows a batch")
    max_length: Whole = Field(
        512, ge=2, description="tokens of a sentence that are read at once; longer ones in windows of so many"
    )
    accumulate: Whole = Field(1, ge=1, description="batches an update, for batches larger than memory")
    shards: Whole = Field(1, ge=1, le=256, description="parts of a batch, each computed by one thread")
    compile: bool = Field(False, strict=True, description="compile the model (batches: packed, numerics: native)")
    processes: Whole = Field(
        1, ge=1, le=4096, description="processes that train the model together, on parts of a batch"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "cpu", description="where training computes: cpu, cuda, mps; auto: the first of cuda, mps, cpu that is there"
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="arithmetic of the forward pass; weights, optimiser and loss are fp32 in any case"
    )
    fsdp: bool = Field(False, strict=True, description="processes share out weights and optimiser (FSDP2)")
    eval_every: Whole = Field(10, ge=1, description="epochs between two measurements without dropout")
    eval_updates: Whole = Field(0, ge=0, description="updates between two further measurements; 0 for none")
    eval_tokens: Whole = Field(100_000, ge=1, description="tokens of such a measurement, at most")
    checkpoint_every: Whole = Field(1000, ge=0, description="updates between two checkpoints; 0: only when stopped")
    snapshots: Whole = Field(
        4, ge=0, le=100, description="models kept on the way, for pictures of how the attention changes; 0 for none"
    )
    resume: bool = Field(True, strict=True, description="go on from the checkpoint of an interrupted run")
    seed: Whole = Field(0, ge=0, lt=2**32, description="initial weights, order of the sentences, dropout")
    replicas: Whole = Field(1, ge=1, le=1000, description="runs that differ in the seed alone: seed, seed + 1, …")
    workers: Whole = Field(0, ge=0, le=256, description="replicas trained at once; 0 for one a core")

    @property
    def window(self) -> int:
        """Tokens that the model reads at once."""
        return self.context if self.batches == "packed" else self.max_length


class EvaluateParams(CorpusParams, ArithmeticParams):
    """What `evaluate` reads."""

    prompts: list[Text] = Field(
        ["", "un gato come"], min_length=1, description="beginnings of sentences to continue; '' is [bos] alone"
    )
    top_k: Whole = Field(15, ge=1, description="most likely next words to list for each prompt")
    stride: Whole = Field(
        0, ge=0, description="targets scored a window of a long text, the tokens before are context; 0: all, no context"
    )
    train_sample: Whole = Field(200_000, ge=1, description="tokens of the training text that are scored, at most")
    resamples: Whole = Field(1000, ge=100, le=100_000, description="resamples of the bootstrap over sentences")


class PlotsParams(Settings):
    """What `plots` reads."""

    rate_d_model: Whole = Field(256, ge=1, description="d_model in the picture of Noam's rate")
    rate_warmups: list[Annotated[int, Field(ge=1), BeforeValidator(_whole)]] = Field(
        [2000, 4000, 8000, 16000], min_length=1, description="warm-ups in the picture of Noam's rate"
    )


class Params(PrepareParams, VocabParams, TrainParams, EvaluateParams, PlotsParams):
    """Every key of params.yaml."""


STAGE_PARAMS: dict[str, type[Settings]] = {
    "prepare": PrepareParams,
    "vocab": VocabParams,
    "train": TrainParams,
    "evaluate": EvaluateParams,
    "plots": PlotsParams,
    "track": Params,
}

# What has no part in the result of a training run: how it is carried out, and how many others there are.
WITHOUT_EFFECT = {"threads", "workers", "replicas", "checkpoint_every", "resume"}
# What its last digits alone depend on: a run goes on with another choice.
IN_LAST_DIGITS = {"processes", "fsdp"}

P = TypeVar("P", bound=Settings)


class _UniqueKeys(yaml.SafeLoader):
    """A safe loader that refuses a key written twice (YAML's own rule, which PyYAML does not hold)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # super() refuses it
            if key_node.value in seen:
                line = key_node.start_mark.line + 1
                raise ParamError(key_node.value, f": written twice, the second time in line {line}")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_params_file(path: Path = paths.PARAMS) -> dict[str, Any]:
    """The raw keys and values of a parameter file.

    Raises:
        ParamError: no such file, not UTF-8 text, not YAML, not a mapping, or a key written twice.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=_UniqueKeys)  # noqa: S506 (a SafeLoader)
    except FileNotFoundError:
        raise ParamError("", "no such file here; run this in the project's folder", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise ParamError("", f"byte {error.start} is not UTF-8", file=str(path)) from None
    except yaml.reader.ReaderError as error:
        raise ParamError("", f"U+{error.character:04X} is not allowed in YAML", file=str(path)) from None
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ParamError("", f"{place}not YAML: {error.problem}", file=str(path)) from None
    except ValueError as error:  # a date in month 13
        raise ParamError("", f"not YAML: {error}", file=str(path)) from None
    if not isinstance(content, dict):
        raise ParamError("", "expected one `key: value` a line", file=str(path))
    return {str(key): value for key, value in content.items()}


def parse_params(raw: dict[str, Any], *, file: str = "params.yaml") -> Params:
    """All parameters, typed and checked, from raw values.

    Raises:
        ParamError: with one line for each key that is unknown, missing or not allowed.
    """
    fields = Params.model_fields
    problems = [(key, f": unknown key{nearest(key, fields)}") for key in raw.keys() - fields.keys()]
    for key in fields.keys() - raw.keys():
        default = json.dumps(fields[key].default, ensure_ascii=False)
        problems.append((key, f": missing; add `{key}: {default}` for the default"))
    try:
        params = Params.model_validate({key: value for key, value in raw.items() if key in fields})
        problems += conflicts(params)
    except ValidationError as error:
        for key in dict.fromkeys(str(detail["loc"][0]) for detail in error.errors()):
            shown = json.dumps(raw[key], ensure_ascii=False, default=str)
            problems.append((key, f" = {shown}: expected {allowed(key)} ({fields[key].description})"))
    if problems:
        first, *others = sorted(problems)
        message = "".join(f"\n{file}: {key}{problem}" for key, problem in others)
        raise ParamError(first[0], first[1] + message, file=file)
    return params


def load_params(kind: type[P], path: Path = paths.PARAMS) -> P:
    """Check every key of the file, then give the ones that a stage declares.

    Raises:
        ParamError: see `parse_params`; also for keys that this stage does not read.
    """
    everything = parse_params(read_params_file(path), file=path.name)
    return kind.model_validate({name: getattr(everything, name) for name in kind.model_fields})


def allowed(key: str) -> str:
    """The values that a key takes, in words: 'a whole number ≥ 1'."""
    schema = json_schema()["properties"][key]
    if "enum" in schema:
        return " or ".join(", ".join(schema["enum"]).rsplit(", ", 1))
    if schema["type"] == "array":
        return f"a list with at least one entry, each {_allowed_scalar(schema['items'])}"
    if schema["type"] == "boolean":
        return "true or false"
    return _allowed_scalar(schema)


def _allowed_scalar(schema: dict[str, Any]) -> str:
    kind = {"integer": "a whole number", "number": "a number", "string": "a text"}[schema["type"]]
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
    if schema.get("minLength"):
        bounds.append("that is not empty")
    return " ".join([kind, " and ".join(bounds)]).strip()


def json_schema() -> dict[str, Any]:
    """The JSON schema of params.yaml."""
    schema = Params.model_json_schema()
    schema["title"] = "Noam Lab parameters"
    return schema


if __name__ == "__main__":
    print(json.dumps(json_schema(), ensure_ascii=False, indent=1))
