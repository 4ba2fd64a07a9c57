# What there is to do: `make help`.

# The tools of .venv come first, also for the commands that DVC runs.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PORT ?= 5000

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-server repository repro ui sync verify studies server test test-services test-all lint bench profile schema wheel audit clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup:
	@.ci/setup run

setup-dev:
	@.ci/setup dev

setup-server:
	@.ci/setup server

repository:
	@git rev-parse --git-dir >/dev/null || { echo "error: DVC needs a git repository here; run: git init && git add -A && git commit -m start" >&2; exit 1; }

repro: repository setup  ## set up what is missing, run the pipeline, say what came out
	@dvc repro
	@noam summary

ui: setup  ## open MLflow's pages on this machine (PORT=5000)
	@noam ui --port $(PORT)

server: setup-server  ## start a team's store on this machine (PORT=5000, OPTIONS='--host … --allowed-hosts …')
	@noam server --port $(PORT) $(OPTIONS)

sync: setup  ## bring into MLflow whatever it has not got yet
	@noam sync

verify: setup  ## run the commit anew in a fresh clone with an empty cache, compare every output
	@noam verify

studies: repository setup  ## run the shipped studies in full, which takes about an hour, and write reports/studies
	@for study in warmup-toy post-norm-needs-warmup lr-sensitivity radam optimizers; do noam study run $$study || exit 1; done

test: setup-dev  ## set up what is missing, run the tests
	@python -m pytest -n 2 --dist loadfile

test-services: setup-dev  ## the tests with PostgreSQL, Dask, Slurm, S3 and several processes, as far as they are there
	@python -m pytest -n 2 --dist loadfile -m services

test-all: setup-dev  ## the slow tests as well
	@python -m pytest -n 2 --dist loadfile -m ''

lint: setup-dev  ## format and lint, check the types
	@ruff format . && ruff check --fix . && mypy

bench: setup-dev  ## time training beside what it is measured against (OPTIONS=--quick)
	@python -m tests.benchmarks.bench $(OPTIONS)

profile: setup-dev  ## show where the time of the training loop goes
	@python -m tests.benchmarks.profile

schema: setup-dev  ## write the JSON schemas of params.yaml and of studies anew
	@python -m stages.params > stages/params.schema.json
	@python -m stages.studies.spec > stages/studies/study.schema.json

wheel: setup-dev  ## build the wheel of the last commit into build/dist, the same bytes each time
	@.ci/wheel

audit: setup-dev  ## ask whether anything is known against the locked versions (OPTIONS='-s osv')
	@python .ci/audit.py $(OPTIONS)

clean:  ## remove what the tools leave behind; keeps .venv, data, runs and the cache
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build noam_lab.egg-info
	@find stages tests -name __pycache__ -prune -exec rm -rf {} +
