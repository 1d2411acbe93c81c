# Every target installs what it needs: the virtual environment is created once, and updated only when pyproject.toml or
# constraints.txt change.
#
#   make setup                       creates the virtual environment with all dependencies
#   make pretrain                    quickstart: trains a tiny model on a simulated cohort, a few minutes on two CPU cores
#   make pretrain DATA=FOLDER        quickstart on a folder of PhysioNet 2021 recordings
#   make test | lint                 runs the tests | ruff, mypy and the import contracts
#   make test-cluster                runs pre-training on two hosts, network namespaces on this machine; needs root
#   make test-faults [SEED=0] [CASES=200]  injects random faults, such as kills and damaged files; ten minutes
#   make bench                       compares speed ratios of training step and loader with the recorded ones
#   make messages                    lists every message that users can see, for proofreading

PYTHON ?= python3
VENV ?= .venv
DATA ?=
SEED ?= 0
CASES ?= 200

.PHONY: help setup pretrain test test-cluster test-faults lint bench messages
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
RUN := runs/quickstart-$(NAME)-$(shell date +%Y%m%d-%H%M%S)

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
	deepspeed --quiet --num_gpus 1 engine/pretrain.py --config configs/quickstart.yaml data.path=datasets/$(NAME) output_dir=$(RUN)
	@echo
	@echo "See $(RUN)/loss.png. To train the paper's model on these crops:"
	@echo "  $(VENV)/bin/deepspeed engine/pretrain.py --config configs/pretrain/w2v_cmsc_rlm.yaml data.path=datasets/$(NAME)"

test: $(INSTALLED)
	python -m pytest

test-cluster: $(INSTALLED)
	python -m pytest -m cluster tests/cluster

test-faults: $(INSTALLED)
	python tests/faults.py --seed $(SEED) --cases $(CASES)

lint: $(INSTALLED)
	ruff check .
	ruff format --check .
	mypy
	lint-imports

bench: $(INSTALLED)
	python benchmarks/check_regression.py

messages: $(INSTALLED)
	@python tests/list_messages.py
