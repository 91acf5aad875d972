# Every target sets up what it needs. The environment is rebuilt only when the dependency files change.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# Bytecode is kept whatever the environment says: without it every process of the tests compiles all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo lesson test browser check scripts bench soak clean
help:
	@echo "make demo    translate, train a small translator, see where its heads look: about three minutes"
	@echo "make lesson  attention by hand, and a model that learns where to look: half a minute"
	@echo "make test    all tests"
	@echo "make check   style, types, import direction"
	@echo "make bench   speed against PyTorch and Hugging Face, side by side"
	@echo "make soak    what is too long for every run"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(RUN) examples/translate.py

lesson: $(STAMP)
	$(RUN) examples/first_look.py

# Two runs: shapes are checked at every call in the first, which torch.compile and wrong input do not survive.
test: $(STAMP) browser
	$(RUN) -m pytest -n 2 --dist loadfile -m "not unchecked"
	CLEARHEAD_CHECK_SHAPES=0 $(RUN) -m pytest -n 2 --dist loadfile -m unchecked tests

# The tests of the page open it in Debian's Chromium. Where it is missing it is installed, if that is allowed; mirrors
# fail now and then. Where CI_RUN is 1 there is no going on without it.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120
browser:
	@command -v chromium >/dev/null && exit 0; said="$$(id -un) may not install it"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then for try in 1 2 3; do \
	  said=$$(timeout 300 sh -c '$(APT) update; $(APT) install -y --no-install-recommends chromium' 2>&1) && exit 0; \
	  said=$$(echo "$$said" | tail -n 1); sleep $$((5 * try)); \
	done; fi; \
	[ "$$CI_RUN" = 1 ] && echo "no Chromium here ($$said), and the tests of the page need it" && exit 1; \
	echo "no Chromium here ($$said), so the tests of the page are skipped; install it: apt-get install chromium"

check: $(STAMP) scripts
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest tests/test_layout.py

# Biome, which npm brings, checks the scripts and styles of the page; the page itself needs nothing of it. Where npm or
# the network is missing they are not checked, but where CI_RUN is 1 that is a failure.
BIOME := tooling/node_modules/.bin/biome
NPM := npm install --prefix tooling --no-package-lock --no-audit --no-fund --loglevel=error
scripts:
	@command -v npm >/dev/null || said="no npm here"; \
	[ -n "$$said" ] || [ $(BIOME) -nt tooling/package.json ] || { said=$$($(NPM) 2>&1) && said= && touch $(BIOME); }; \
	[ -n "$$said" ] || NO_COLOR=1 exec $(BIOME) ci --error-on-warnings; \
	echo "the page's scripts are not checked: $$(echo "$$said" | head -n 1)"; [ "$$CI_RUN" != 1 ]

bench: $(STAMP)
	$(RUN) benchmarks/attention_speed.py
	$(RUN) benchmarks/lens_speed_cpu.py
	$(RUN) benchmarks/lens_speed.py
	$(RUN) benchmarks/model_speed.py
	$(RUN) benchmarks/train_speed_cpu.py
	$(RUN) benchmarks/heads_cost.py
	$(RUN) benchmarks/decode_speed.py
	$(RUN) benchmarks/language_model_speed.py

# Its output is kept: what was tried, and that nothing was found.
soak: $(STAMP)
	$(RUN) benchmarks/soak.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
