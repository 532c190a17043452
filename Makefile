# What there is to do with this tree; `make` lists it. No target needs a terminal or an
# input. hosts, test-packages and test-systemd need root. test-packages may install Debian's
# tools; else all but install and uninstall leave the machine as it was.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
DIST    ?= dist
VERSION ?=
SIM     ?=
FUZZ    ?= 10s
# More flags for go test, e.g. TESTFLAGS='-v -run TestKill'.
TESTFLAGS ?=
# More flags for make bench, as in BENCHFLAGS='-n 40', and for make bench-scale, as in BENCHFLAGS='-sizes 10,1000 -real 10'.
BENCHFLAGS ?=

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

NFPM        := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
CYCLONEDX   := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

# What make dist builds for.
TARGETS := linux/amd64 linux/arm64 linux/arm freebsd/amd64 darwin/amd64 darwin/arm64

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
		'make bench-scale measure 10 to 1000 contenders, and 2000 locks, on one server' \
		'make lint       gofmt, go vet, staticcheck, govulncheck' \
		'make cross      vet and build for every system: $(TARGETS)' \
		'make dist       a release into DIST=dist: archives, deb, rpm, SBOM, SHA256SUMS' \
		'make dist-check build it twice, in two folders: the same bytes' \
		'make test-packages install, use, upgrade and purge the deb in a fresh Debian' \
		'make test-systemd  boot hosts with a real systemd and cron, and run units on them' \
		'make install    install to $$(DESTDIR)$$(PREFIX)/bin (PREFIX=/usr/local)' \
		'make uninstall  remove from there what install puts there' \
		'make clean      remove what was built here'

.PHONY: build
build:
	$(BUILD) -o onlyone .

.PHONY: install
install: build
	scripts/lib/stage onlyone '$(DESTDIR)$(PREFIX)'

.PHONY: uninstall
uninstall:
	scripts/lib/stage --remove '$(DESTDIR)$(PREFIX)'

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
	@scripts/bench $(if $(LOG),-log '$(LOG)') $(BENCHFLAGS)

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
.PHONY: bench-scale
bench-scale:
	$(GO) run ./internal/benchscale $(BENCHFLAGS)

# A tool that can't be had here, or a vulnerability database that can't be reached, is a
# line that begins with "skipped:", not a failure.
.PHONY: lint
lint:
	@echo 'gofmt -l .'; \
	files=$$(gofmt -l .); \
	if [ -n "$$files" ]; then printf 'not formatted (gofmt -w mends it):\n%s\n' "$$files" >&2; exit 1; fi
	$(GO) vet ./...
	$(MAKE) --no-print-directory cross
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

# A release into dist/: archives for every target, packages, bills of materials, checksums.
# The version is that of cli.Version, or VERSION.
.PHONY: dist
dist: export BUILD_BINARY = $(BUILD)
dist: export RELEASE = $(or $(VERSION),$(shell sed -n 's/^var Version = "\(.*\)"/\1/p' cli/runner.go))
dist:
	@GO='$(GO)' TARGETS='$(TARGETS)' NFPM='$(NFPM)' CYCLONEDX='$(CYCLONEDX)' scripts/dist '$(DIST)'

.PHONY: dist-check
dist-check:
	@scripts/dist-check

# The packages in a fresh Debian: as root, with Debian's debootstrap and lintian.
.PHONY: test-packages
test-packages:
	@scripts/test-packages

# All that is in the tree, tests included, compiles for every target. Only Linux' tests can
# be run here.
.PHONY: cross
cross:
	@for target in $(TARGETS); do \
		echo "go vet, go build: $$target"; \
		export GOOS=$${target%/*} GOARCH=$${target#*/} GOARM=7; \
		$(GO) vet ./...; \
		$(BUILD) -o /dev/null .; \
	done

# TESTFLAGS='-v -run TestWatchdog' works here, too.
.PHONY: test-systemd
test-systemd:
	@GO='$(GO)' scripts/test-systemd $(TESTFLAGS)

.PHONY: clean
clean:
	rm -rf onlyone dist *.test *.prof supervisor/*.test
