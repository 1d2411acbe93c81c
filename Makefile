# Every target installs what it needs: the virtual environment is created once, and updated only when pyproject.toml or
# constraints.txt change.
#
#   make setup                       creates the virtual environment with all dependencies
#   make pretrain                    quickstart: trains a tiny model on a simulated cohort, a few minutes on two CPU cores
#   make pretrain DATA=FOLDER        quickstart on a folder of PhysioNet 2021 recordings
#   make finetune [DATA=FOLDER]      after it: fine-tunes that model, evaluates it, predicts, and reports all of it
#   make test | lint                 runs the tests, in a process per core | ruff, mypy and the import contracts
#   make test-long                   runs the tests that take a minute or more each
#   make test-cluster                runs pre-training on two hosts, network namespaces on this machine, under torchrun, SLURM and
#                                    deepspeed --hostfile; needs root, skips what is not installed
#   make test-faults [SEED=0] [CASES=200] [JSON=FILE]  injects random faults, such as kills and damaged files; ten minutes
#   make bench                       compares speed ratios of training step and loader with the recorded ones
#   make docs                        builds the documentation into build/docs/index.html
#   make messages                    lists every message that users can see, for proofreading

PYTHON ?= python3
VENV ?= .venv
DATA ?=
SEED ?= 0
CASES ?= 200
JSON ?=

.PHONY: help setup pretrain finetune test test-long test-cluster test-faults lint bench docs messages
.DEFAULT_GOAL := help

INSTALLED := $(VENV)/.installed
BIN := $(abspath $(VENV))/bin
export PATH := $(BIN):$(PATH)

ifeq ($(DATA),)
RECORDINGS := datasets/simulated-wfdb
NAME := simulated
else
RECORDINGS := $(DATA)
NAME := $(notdir $(abspath $(DATA)))
endif
TIME := $(shell date +%Y%m%d-%H%M%S)
# A run of pre-training that was interrupted goes on.
LAST := $(lastword $(sort $(wildcard runs/quickstart-$(NAME)-*)))
RUN := $(if $(LAST),$(if $(wildcard $(LAST)/summary.json),,$(LAST)))
RUN := $(or $(RUN),runs/quickstart-$(NAME)-$(TIME))
# The run of pre-training that `make finetune` starts from: the last one that has ended.
PRETRAINED ?= $(patsubst %/summary.json,%,$(lastword $(sort $(wildcard runs/quickstart-$(NAME)-*/summary.json))))
FINETUNED := runs/finetune-$(NAME)-$(TIME)

help:
	@sed -n 's/^#   //p' Makefile

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch, DALI and other packages into $(VENV): this takes a few minutes"
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

pretrain: $(INSTALLED)
ifeq ($(DATA),)
	ecg-data synth $(RECORDINGS) --patients 120
endif
	ecg-data build physionet2021 $(RECORDINGS) datasets/$(NAME)
	ecg-data split datasets/$(NAME) --plan random --fractions 0.7,0.1,0.2 --hold-out test
	deepspeed --quiet --num_gpus 1 engine/pretrain.py --config configs/quickstart.yaml data.path=datasets/$(NAME) data.plan=random \
	    output_dir=$(RUN)
	@echo
	@echo "See $(RUN)/loss.png. To train the paper's model, which needs a GPU, on these crops:"
	@echo "  $(VENV)/bin/deepspeed engine/pretrain.py --config configs/pretrain/w2v_cmsc_rlm.yaml data.path=datasets/$(NAME) data.plan=random"
	@echo "To fine-tune, evaluate and report the model of this run: make finetune$(if $(DATA), DATA=$(DATA))"

finetune: $(INSTALLED)
	@test -n "$(PRETRAINED)" || { echo "There is no finished run of pre-training on $(NAME): run make pretrain first" >&2; exit 2; }
	deepspeed --quiet --num_gpus 1 engine/finetune.py --config configs/quickstart_finetune.yaml data.path=datasets/$(NAME) \
	    init_from=$(PRETRAINED) output_dir=$(FINETUNED)
	python engine/evaluate.py $(FINETUNED) --data datasets/$(NAME) --plan random --leads 12,6,3,2,1 -o $(FINETUNED)/evaluation
	python engine/predict.py $(FINETUNED) datasets/$(NAME) --plan random --split test -o $(FINETUNED)/predictions.parquet
	python engine/report.py $(PRETRAINED) $(FINETUNED) $(FINETUNED)/evaluation -o $(FINETUNED)/report.html
	@echo
	@echo "Open $(FINETUNED)/report.html in a browser."

test: $(INSTALLED)
	python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

test-long: $(INSTALLED)
	python -m pytest -m long

test-cluster: $(INSTALLED)
	python -m pytest -m cluster tests/cluster tests/integration/test_launcher.py --durations=0

test-faults: $(INSTALLED)
	PYTHONPATH=benchmarks python tests/faults.py --seed $(SEED) --cases $(CASES) $(if $(JSON),--json $(JSON))

lint: $(INSTALLED)
	ruff check .
	ruff format --check .
	mypy
	lint-imports

bench: $(INSTALLED)
	python benchmarks/check_regression.py

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	@echo "Open build/docs/index.html in a browser. For the search, run $(VENV)/bin/mkdocs serve instead."

messages: $(INSTALLED)
	@python tests/list_messages.py
