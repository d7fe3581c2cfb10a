# See CONTRIBUTING.md for how these fit together.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

# Without paths in what is compiled, all clones on a machine share Go's build cache.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath)

# Tools are built from source, pinned, into .bin; nothing is installed elsewhere.
BIN := $(abspath .bin)
GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
KO_VERSION := v0.19.1
KO := $(BIN)/ko-$(KO_VERSION)

# Recorded streams and transcripts of real agents, which test-data reads.
WAKE_SHARED_DATA ?= ../shared/data

FUZZTIME ?= 10s

# What is released.
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

# What runs tests, by so many packages at a time: most of them wait for servers, clusters and programs. The linter vets.
GOTEST ?= go test
PACKAGES_AT_A_TIME ?= 4
LONGEST_FIRST := ./cmd/... ./services/... ./test/... ./...

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/wake
	CGO_ENABLED=0 go build -o bin/ ./cmd/wake

.PHONY: run
run: build ## Run the demo: everything in one process, recorded agents, offline
	./bin/wake up --demo

.PHONY: check
check: lint test tidy ## Everything a change must pass

# With TAGS=shareddata the tests on recordings are among them: their packages are built once for both.
TAGS ?=

.PHONY: test
test: $(if $(TAGS),recordings) ## Run the tests
	CGO_ENABLED=0 WAKE_SHARED_DATA="$(abspath $(WAKE_SHARED_DATA))" $(GOTEST) -vet off $(if $(TAGS),-tags $(TAGS)) -p $(PACKAGES_AT_A_TIME) -timeout 20m $(LONGEST_FIRST)

# Not for the race detector is what SQLite and its C library are in Go. database/sql hands a connection to one goroutine
# at a time; watched, it took two thirds of the recorder's time, most of it to check each pointer that is made.
# Only modules without generic code of others (sync.Map, atomic.Pointer) may be here: the linker takes one of its
# copies for all, and what that of an unwatched module does first and what later, the detector doesn't see.
UNWATCHED := '-gcflags=modernc.org/...=-race=false -dwarf=false -d=gcstart=128'

# Between them, each test once: see .ci/tests.
.PHONY: race
race: ## Run the tests of what is concurrent with the race detector (needs a C compiler), some shortened
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=0 .ci/tests race $(GOTEST) -vet off -race $(UNWATCHED) -p $(PACKAGES_AT_A_TIME) -timeout 25m

.PHONY: raceless
raceless: $(if $(TAGS),recordings) ## Run the tests that `race` leaves out or shortens
	CGO_ENABLED=0 WAKE_SHARED_DATA="$(abspath $(WAKE_SHARED_DATA))" .ci/tests raceless $(GOTEST) -vet off $(if $(TAGS),-tags $(TAGS)) -p $(PACKAGES_AT_A_TIME) -timeout 20m

.PHONY: recordings
recordings:
	@test -d "$(WAKE_SHARED_DATA)" || { echo "recordings: no folder $(WAKE_SHARED_DATA): set WAKE_SHARED_DATA" >&2; exit 1; }

.PHONY: test-data
test-data: recordings ## Run the tests on the recordings in $WAKE_SHARED_DATA
	files=$$(grep -rlE '^//go:build .*shareddata' --include='*_test.go' .); \
	packages=$$(xargs -n1 dirname <<<"$$files" | sort -u); \
	tests=$$(xargs sed -nE 's/^func (Test[A-Za-z0-9_]+)\(.*/\1/p' <<<"$$files" | sort -u | paste -sd'|'); \
	CGO_ENABLED=0 WAKE_SHARED_DATA="$(abspath $(WAKE_SHARED_DATA))" $(GOTEST) -vet off -count=1 -tags shareddata -run "^($$tests)\$$" $$packages

.PHONY: test-postgres
test-postgres: ## Run the tests of the recorder's store on a PostgreSQL of their own
	test/postgres/run

.PHONY: test-examples
test-examples: ## Run the examples in all languages that are at hand
	test/examples/run

.PHONY: test-clients
test-clients: ## Run the tests of the SessionStore's adapters, with node and python3
	CGO_ENABLED=0 go test -count=1 -tags clients -run '^TestClients$$' ./services/mirror

.PHONY: test-console
test-console: ## Look at the console with Chromium: every page, phone and desktop, dark and light
	test/browser/run

.PHONY: test-claude
test-claude: ## Run the tests on the real Claude CLI, from npm, with a made-up API
	test/claude/run

.PHONY: test-agents
test-agents: ## Kill the real agents of all kinds in the middle of their work: from npm, with a scripted model
	test/agents/run

SEED ?= 0
KILLS ?= 40

SEEDS ?= 2000
FROM ?= 1

.PHONY: sim
sim: ## Simulate SEEDS worlds from seed FROM on, in two processes
	CGO_ENABLED=0 go test -count=1 -v -timeout 0 -run '^TestSim$$' ./test/sim -args -workers 2 -from $(FROM) -seeds $(SEEDS)

.PHONY: mutants
mutants: ## Switch off each rule of the log, and show that tests and the simulation notice
	CGO_ENABLED=0 go test -count=1 -v -p 1 -tags mutants -timeout 60m -run '^TestMutants$$' ./test/mutants ./test/sim

PARKED ?= 10000
LEFT ?= 5000

.PHONY: parked
parked: ## Park PARKED runs in one runner: what each costs, and all due in the same second
	CGO_ENABLED=0 go test -count=1 -timeout 60m -v -tags parked -run '^TestParkedCost$$' ./services/runner -args -parked $(PARKED)

.PHONY: takeover
takeover: ## Leave LEFT runs of a runner that is gone to two others: how soon each has another owner
	CGO_ENABLED=0 go test -count=1 -timeout 10m -v -tags parked -run '^TestTakeoverCost$$' ./services/runner -args -left $(LEFT)

.PHONY: kill
kill: ## Kill the processes of runs at KILLS random points; SEED repeats a choice
	CGO_ENABLED=0 go test -count=1 -timeout 30m -v -tags kill ./test/kill -args -seed $(SEED) -kills $(KILLS)

.PHONY: disks
disks: ## Fill the disks of the log and of the recorder while agents are at work (root: they are mounted)
	CGO_ENABLED=0 go test -count=1 -timeout 30m -v -tags kill,disks -run TestDisk ./test/kill

.PHONY: kill-claude
kill-claude: ## Kill runners of the real Claude CLI, KILLS times each way, see test-claude
	WAKE_CLAUDE_PACKAGE=./test/kill WAKE_CLAUDE_ARGS="-seed $(SEED) -kills $(KILLS)" \
		test/claude/run -tags kill,claudecli -run TestClaude -timeout 6h -v

.PHONY: fence
fence: ## Take one of two machines away from its agents, in three ways (root: they are namespaces)
	test/fence/run

DURATION ?= 20m
TORTURE ?= TestTorture

.PHONY: torture
torture: ## Break a whole installation, cluster and disks included, for DURATION; SEED repeats a choice, TORTURE=TestServers kills servers alone
	CGO_ENABLED=0 go test -count=1 -timeout 3h -v -tags torture -run '^$(TORTURE)$$' ./test/torture -args -seed $(SEED) -duration $(DURATION)

BENCH ?= bench
BENCHCOUNT ?= 6
HOT := ./pkg/wire ./internal/run ./internal/flow ./internal/eventlog ./internal/bookmark ./internal/bench ./internal/agent/claude ./services/recorder

.PHONY: bench
bench: build ## Measure into the folder BENCH: wake.txt, and go.txt for benchstat
	mkdir -p "$(BENCH)"
	./bin/wake bench --dir "$(BENCH)" | tee "$(BENCH)/wake.txt"
	CGO_ENABLED=0 go test -run '^$$' -bench . -count $(BENCHCOUNT) -timeout 60m $(HOT) | tee "$(BENCH)/go.txt"

# With RACE=1 it reads the types of what `race` has compiled; else of what `test` has.
RACE ?=

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Lint, and check formatting
	CGO_ENABLED=$(if $(RACE),1,0) GOFLAGS="$(GOFLAGS) $(if $(RACE),-race $(UNWATCHED))" $(GOLANGCI_LINT) run

.PHONY: check-platforms
check-platforms: ## Type-check all code and tests for the other platforms that are released
	CGO_ENABLED=0 go run ./test/platforms $(filter-out $(shell go env GOHOSTOS)/$(shell go env GOHOSTARCH),$(PLATFORMS))

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code
	$(GOLANGCI_LINT) fmt

.PHONY: golden
golden: ## Rewrite golden files; read the diff before committing it
	go test $$(grep -rl 'flag.Bool("update"' --include='*_test.go' . | xargs -n1 dirname | sort -u) -update

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME
	grep -rl '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		go test -list '^Fuzz' "$$dir" | grep '^Fuzz' | while read -r target; do \
			go test "$$dir" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME); \
		done; \
	done

.PHONY: k8s-check
k8s-check: build ## Render the manifests for Kubernetes, and say what is wrong with them
	test -e deploy/k8s/overlays/lab/secrets/auth.conf || ./bin/wake auth generate --dir deploy/k8s/overlays/lab/secrets \
		--host 'nats,nats.wake.svc,*.nats-headless,*.nats-headless.wake.svc'
	cd deploy/k8s/check && go vet . && go test -count=1 .

.PHONY: k8s-lab
k8s-lab: ## Run wake on a real Kubernetes of three nodes on this machine, and break it: K8S_LAB
	test/k8s/run

.PHONY: release
release: $(KO) ## Build what is released into dist/: binaries, images, bills of materials, checksums
	deploy/release "$(KO)" $(PLATFORMS)

.PHONY: tidy
tidy: ## Fail if go.mod is not tidy
	go mod tidy -diff

$(BIN)/golangci-lint-%: .golangci.yml .ci/linter
	.ci/linter $* $@

$(BIN)/ko-%:
	CGO_ENABLED=0 GOBIN=$(BIN) go install github.com/google/ko@$*
	mv $(BIN)/ko $@
