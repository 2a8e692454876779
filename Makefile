# Everything that is done to weir by hand or by CI. `make` lists it.
# Needed beforehand: Go, git and make. `make setup` sees to the rest.

.DEFAULT_GOAL := help
SHELL := /bin/sh

FUZZTIME ?= 10s
COUNT ?= 10
PKG ?= ./...
TEST_TIMEOUT ?= 30m
# Packages that are tested at a time: by itself, one waits for its servers most of the time.
TEST_JOBS ?= $(shell expr $$(nproc) \* 2)
# The longest packages begin first: the last one would run alone for minutes.
long := ./internal/proxy/postgres ./internal/proxy/mysql ./internal/backup/restore/... \
	./cmd/weir ./internal/kvd/cmd ./internal/outbox/torture ./internal/ruler/bench/backup

# By default a program with the race detector sleeps for a second before it ends,
# and tests run hundreds of them.
export GORACE ?= atexit_sleep_ms=10

# One build for the linters and the tests, with the race detector and without the
# tables of debuggers (stacks have their lines all the same), which half of linking is;
# without the checkout's path, so that each checkout finds what another has compiled.
# A compiler or linter that may grow collects no garbage: a quarter of the work. Tests
# collect theirs less often; those that bound memory collect it themselves.
instrumented := GOFLAGS="$(shell go env GOFLAGS) -mod=readonly -trimpath -race -ldflags=-w"
frugal := GOGC=off GOMEMLIMIT=2GiB
gotest := GOGC=300 $(instrumented) scripts/in-memory go test -vet=off -timeout $(TEST_TIMEOUT)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: ## Install the servers that the tests run against, where missing
	@scripts/setup

.PHONY: kafka
kafka: ## Fetch Kafka into bin/kafka, for those tests that want it
	@scripts/kafka

.PHONY: kafka-or-not
kafka-or-not:
	@scripts/kafka || echo "going on without Kafka: its jars could not be fetched"

.PHONY: build
build: ## Build bin/weir
	go build -mod=readonly -o bin/weir ./cmd/weir

.PHONY: peers
peers: ## Build bin/weir-peers, the other outboxes of weir bench outbox
	go build -C bench/peers -mod=readonly -o ../../bin/weir-peers .

.PHONY: run
run: ## See weir at work against throwaway servers of both engines
	@scripts/run

.PHONY: cross
cross: ## Compile what runs on macOS, and the libraries for Windows
	GOOS=darwin GOARCH=arm64 go build -mod=readonly -o /dev/null ./cmd/weir
	GOOS=darwin GOARCH=amd64 go build -mod=readonly -o /dev/null ./cmd/weir
	GOOS=darwin GOARCH=arm64 go build -mod=readonly ./batch/... ./outbox/... ./kv/...
	GOOS=windows GOARCH=amd64 go build -mod=readonly ./batch/... ./outbox/... ./kv/...

.PHONY: release
release: ## Build what a release consists of, into out/release
	@scripts/release

.PHONY: lint
lint: vet staticcheck ## Check the code with vet, staticcheck and gofumpt

.PHONY: vulncheck
vulncheck: ## Look for known holes in what is linked in
	@scripts/vulncheck

.PHONY: staticcheck
staticcheck:
	@scripts/setup lint
	GOGC=400 GOMEMLIMIT=6GiB $(instrumented) bin/tools/staticcheck $(PKG)

# It compiles what staticcheck and the tests begin with.
.PHONY: vet
vet:
	@scripts/setup lint
	$(frugal) $(instrumented) go vet $(PKG)
	@out=$$(bin/tools/gofumpt -l $(PKG:/...=)); \
	if [ -n "$$out" ]; then echo "not formatted (bin/tools/gofumpt -w):"; echo "$$out"; exit 1; fi

# Its packages are vetted by then: go test would vet them once more, as it builds them.
.PHONY: check
check: lint ## Lint PKG and test it with the race detector: make check PKG=./internal/cli
	$(gotest) $(PKG)

# Vet works, and compiles, while servers are being installed: the one waits for the
# network, the other for the processors. WITH names further targets, as .ci/run does.
.PHONY: ready
ready:
	@scripts/setup compiler
	@$(MAKE) --no-print-directory -j --output-sync=recurse setup vet $(WITH)

# Staticcheck and the simulators have the processors while tests wait for their servers.
.PHONY: test
test: ready ## Lint and test everything with the race detector
	@$(MAKE) --no-print-directory -j staticcheck tested simulate

.PHONY: tested
tested:
	$(gotest) -p $(TEST_JOBS) $(if $(filter ./...,$(PKG)),$(long)) $(PKG)

# What computes in one thread: under the detector it plays few seeds, and none of the
# simulator's deliberate bugs.
.PHONY: simulate
simulate: ## Play the simulators without the race detector
	scripts/in-memory go test -mod=readonly -vet=off -timeout $(TEST_TIMEOUT) ./internal/kvd/consensus/sim
	go test -mod=readonly -vet=off -short -timeout $(TEST_TIMEOUT) ./batch/sim ./internal/backup/fastzstd ./internal/kvd/wal ./internal/ruler/bench

.PHONY: again
again:
	$(gotest) -count=1 -run '$(TESTS)' $(PKG)

.PHONY: test-matrix
test-matrix: setup ## Run the suites on other versions and settings of the servers
	scripts/test-matrix

.PHONY: race
race: setup ## Repeat the tests COUNT times with the race detector
	$(instrumented) scripts/in-memory go test -count=$(COUNT) -timeout 60m $(PKG)

# What `make test` plays a few rounds of: seeds of the simulator and of the log's
# disks, kills, storms, damaged archives, many tables, deliberate bugs.
.PHONY: torture
torture: setup ## Play for hours the rounds that make test plays a few of
	go test -mod=readonly -count=1 -timeout 0 -run '^TestSeeds$$' ./internal/kvd/consensus/sim -seeds 20000
	go test -mod=readonly -count=1 -timeout 0 -run '^TestScenesAreFaultlessByThemselves$$' ./internal/kvd/consensus/sim -budget 200
	go test -mod=readonly -count=1 -timeout 0 -run '^TestWhatWasFlushedSurvivesAnyCrash$$' ./internal/kvd/wal -seeds 20000
	go test -mod=readonly -race -count=1 -timeout 0 -run '^TestStorm$$' ./internal/kvd/storm -storm 20m
	go test -mod=readonly -race -count=1 -timeout 0 -run '^TestTorture$$' ./kv -torture 2m
	WEIR_TORTURE=1 WEIR_TORTURE_MUTANTS=1 go test -mod=readonly -race -count=1 -timeout 0 ./internal/outbox/torture
	WEIR_TORTURE=1 go test -mod=readonly -race -count=1 -timeout 0 -run '^TestRandomTextsInEncodingsThatAreNotRead$$' ./internal/proxy/postgres
	WEIR_DAMAGE=2000 go test -mod=readonly -race -count=1 -timeout 0 -run '^TestDamageIsFound$$' ./internal/backup/restore/...
	WEIR_TEST_TABLES=2000 go test -mod=readonly -count=1 -timeout 0 -run '^(TestManyTables|TestEmptyAndMany)$$' ./internal/backup/restore/...
	@scripts/patroni || echo "going on without Patroni: it could not be installed"
	@scripts/drivers || echo "going on without some drivers: they could not be installed"
	WEIR_KILLS=500 WEIR_FAILOVERS=500 WEIR_PATRONI_ROUNDS=10 WEIR_DRIVERS_ROUNDS=10 WEIR_UNREAD_CLIENTS=10000 go test -mod=readonly -count=1 -timeout 0 ./internal/proxy/killtest

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME
	@scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: setup build ## Measure the proxy against a direct connection
	bin/weir bench proxy --plan mini --lab

.PHONY: tla
tla: ## Check the specifications of weir kv; TLC=path/to/tla2tools.jar
	@if [ -z "$(TLC)" ]; then \
		echo "make tla TLC=path/to/tla2tools.jar: TLC comes with the TLA+ tools and needs Java 11 or later; docs/tla.md says more"; exit 1; \
	fi
	@tla/check "$(TLC)"

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin out
