# What there is to do with this tree; `make` lists it. No target needs a terminal or an
# input, only hosts needs root, and all but install leave the machine as it was.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION ?=
SIM     ?=
FUZZ    ?= 10s
# More flags for go test, e.g. TESTFLAGS='-v -run TestKill'.
TESTFLAGS ?=

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# A static binary: the same file runs on every Linux of its architecture.
BUILD := CGO_ENABLED=0 $(GO) build -buildvcs=false -trimpath -tags urfave_cli_no_docs \
	-ldflags '-s -w$(if $(VERSION), -X github.com/a-seed-0bc5ead7/onlyone/cli.Version=$(VERSION))'

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

.PHONY: help
help:
	@printf '%s\n' \
		'make build      build ./onlyone (VERSION=1.2.3 names a release)' \
		'make demo       three contenders, one job, two SIGKILLs: see it hold (10 s)' \
		'make test       get a Consul and run every test, the simulation for SIM=1m' \
		'make race       the tests without real processes, under the race detector' \
		'make sim        simulate for SIM=10m; a schedule that breaks the promise prints itself' \
		'make teeth      switch each safety rule off: the simulation must notice' \
		'make fuzz       each fuzz test for FUZZ=10s' \
		'make bench      measure onlyone beside `consul lock`' \
		'make hosts      real faults on seven hosts in network namespaces (root, Linux): at random' \
		'                for FOR=3m with SEED=..., or SCRIPT=all; CONSUL=1.8, PROGRAM=onlyone,...' \
		'make hosts-long the same for FOR=2h in pieces, on both Consuls; then docs/results.md' \
		'make hosts-report  docs/results.md and its pictures from the logs in docs/results' \
		'make lint       gofmt, go vet, staticcheck, govulncheck' \
		'make install    install to $$(DESTDIR)$$(PREFIX)/bin (PREFIX=/usr/local)' \
		'make clean      remove what was built here'

.PHONY: build
build:
	$(BUILD) -o onlyone .

.PHONY: install
install: build
	install -d -m 755 '$(DESTDIR)$(PREFIX)/bin'
	install -m 755 onlyone '$(DESTDIR)$(PREFIX)/bin/onlyone'

.PHONY: demo
demo:
	@scripts/demo

.PHONY: test
test:
	@GO='$(GO)' TESTFLAGS='$(TESTFLAGS)' scripts/lib/test $(or $(SIM),1m)

# -short leaves out what waits for real leases or starts hundreds of processes.
.PHONY: race
race:
	$(GO) test -race -short $(TESTFLAGS) ./consulsession ./signals ./systemd ./internal/consulmodel
	$(GO) test -race -short $(TESTFLAGS) ./supervisor -sim.for $(or $(SIM),10s) -sim.knobs 1000

.PHONY: sim
sim:
	$(GO) test -count=1 -timeout 0 ./supervisor -run '^TestSimulation$$' -v -sim.for $(or $(SIM),10m)

.PHONY: teeth
teeth:
	$(GO) test -count=1 -timeout 0 ./supervisor -run '^TestSimulationHasTeeth$$' -v -sim.knobs 10000

.PHONY: fuzz
fuzz:
	@for pkg in $$($(GO) list ./...); do \
		for name in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			(set -x; $(GO) test "$$pkg" -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ)); \
		done; \
	done

.PHONY: bench
bench:
	@scripts/bench

# What the rig makes is in namespaces of its own and ends with it. Where it can't be had, it
# says "skipped: ...". LOG=docs/results/hosts-NAME.jsonl keeps what it measured.
HOSTS = $(GO) run ./internal/hosts $(if $(SEED),-seed $(SEED)) $(if $(FOR),-for $(FOR)) $(if $(CONSUL),-consul $(CONSUL)) \
	$(if $(PROGRAM),-program '$(PROGRAM)') $(if $(SCRIPT),-script '$(SCRIPT)') $(if $(LOG),-log '$(LOG)')

.PHONY: hosts
hosts:
	@$(HOSTS)

comma := ,
.PHONY: hosts-long
hosts-long: FOR := $(or $(FOR),2h)
hosts-long: PROGRAM := $(or $(PROGRAM),onlyone$(comma)consul-lock)
hosts-long: LOG := $(or $(LOG),docs/results/hosts-random.jsonl)
hosts-long:
	@status=0; $(HOSTS) -pieces 10m || status=$$?; $(MAKE) --no-print-directory hosts-report; exit $$status

.PHONY: hosts-report
hosts-report:
	@$(GO) run ./internal/hosts report

# A tool that can't be had here, or a vulnerability database that can't be reached, is a
# line that begins with "skipped:", not a failure.
.PHONY: lint
lint:
	@echo 'gofmt -l .'; \
	files=$$(gofmt -l .); \
	if [ -n "$$files" ]; then printf 'not formatted (gofmt -w mends it):\n%s\n' "$$files" >&2; exit 1; fi
	$(GO) vet ./...
	@if ! why=$$($(GO) run $(STATICCHECK) -version 2>&1); then \
		printf 'skipped: staticcheck: cannot be had: %s\n' "$$(tail -n 1 <<<"$$why")"; \
	else \
		(set -x; $(GO) run $(STATICCHECK) ./...); \
	fi
	@if ! said=$$($(GO) run $(GOVULNCHECK) -version 2>&1); then \
		printf 'skipped: govulncheck: cannot be had: %s\n' "$$(tail -n 1 <<<"$$said")"; \
	elif said=$$(set -x; $(GO) run $(GOVULNCHECK) ./... 2>&1); then \
		printf '%s\n' "$$said"; \
	elif why=$$(grep 'fetching vulnerabilities' <<<"$$said"); then \
		printf 'skipped: govulncheck: its database cannot be reached: %s\n' "$$why"; \
	else \
		printf '%s\n' "$$said" >&2; exit 1; \
	fi

.PHONY: clean
clean:
	rm -rf onlyone dist *.test *.prof supervisor/*.test
