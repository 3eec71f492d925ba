# Every target makes .venv and installs into it when needed. The work is in `python -m booktools`.
#   PYTHON=python3.12   the interpreter for a new .venv (3.11 or later)
#   LOCK=1              install the exact versions of requirements.lock
PYTHON ?= $(shell command -v python3 || command -v python3.13 || command -v python3.12 || echo python3.11)
CHAPTER ?=
ARGS ?=
BOOK = .venv/bin/python -m booktools

.DEFAULT_GOAL := help
.PHONY: help install run test check site site-check alone lab save export bench clean

help: ## list the targets
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-10s %s\n", $$1, $$2}'
	@echo "Options: CHAPTER=09, ARGS=\"-p seed 3\", PYTHON=python3.12, LOCK=1 (exact versions)."

install: ## make .venv and install the book (the other targets do it by themselves)
	@$(PYTHON) booktools/bootstrap.py $(if $(LOCK),--lock)

run: install ## train the headline agent, or run one chapter: make run CHAPTER=09 ARGS="-p seed 3"
	@$(BOOK) run $(CHAPTER) $(ARGS)

test: install ## static checks, unit tests and every chapter; or one chapter: make test CHAPTER=09
	@$(BOOK) test $(CHAPTER) $(ARGS)

check: install ## prose against code, by the seven rules of CONTRIBUTING.md; without running: make check ARGS=--static
	@$(BOOK) check $(CHAPTER) $(ARGS)

alone: install ## run chapters alone in an empty environment, from the built package
	@$(BOOK) alone $(CHAPTER) $(ARGS)

lab: install ## open the notebooks in JupyterLab
	@$(BOOK) lab $(ARGS)

save: install ## run a chapter from a clean kernel, keep its outputs, export: make save CHAPTER=09
	@$(BOOK) save $(CHAPTER) $(ARGS)

export: install ## write agentrl/ and the API index from the notebooks
	@$(BOOK) export

site: install ## build the book as HTML, EPUB and PDF in _book/ from the stored outputs
	@$(BOOK) site $(ARGS)

site-check: install ## check the built site: links, HTML, accessibility, EPUB; says which checker is missing
	@$(BOOK) site --check

bench: ## speed against the naive code and TRL
	@$(PYTHON) booktools/bootstrap.py --extra bench $(if $(LOCK),--lock)
	@.venv/bin/python benchmarks/run.py $(ARGS)

clean: ## delete .venv and everything else that git ignores
	@rm -rf .venv *.egg-info .pytest_cache results/.draft-* results/*.failed.ipynb
	@find . -name __pycache__ -prune -exec rm -rf {} + -o -name .ipynb_checkpoints -prune -exec rm -rf {} +
