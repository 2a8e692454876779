# Targets for developers and CI. `make` lists them.
# It needs Go, git and make; `make setup` installs the rest.

.DEFAULT_GOAL := help
SHELL := /bin/sh

FUZZTIME ?= 10s
COUNT ?= 10
KILLS ?= 500
PKG ?= ./...
# How long a package may take: only one that hangs reaches it, also on a machine of a quarter of the speed.
TEST_TIMEOUT ?= 20m
# Packages to test in parallel, without and with the race detector: a package waits for its
# servers some of the time. With more than these all wait for each other, and the same tests
# take a sixth more CPU time.
TEST_JOBS ?= $(shell expr $$(nproc) \* 3 / 2)
RACE_JOBS ?= $(shell expr \( $$(nproc) + 1 \) / 2)
# What `make test` tests without the race detector: packages whose work is done by servers
# and other processes or in one thread, and outbox, whose tests of the relay on a virtual
# clock take seven times as long with it, as do those of outbox/sqlite, whose database is Go
# itself; outbox/mysql tests the relay with the detector. All other packages are tested with
# it, and `make race` tests all with it. The slowest packages start first: the last one would
# otherwise run alone for minutes.
plain := ./internal/proxy/postgres ./internal/proxy/mysql ./internal/backup/restore/... \
	./cmd/weir ./internal/kvd/cmd ./internal/outbox/torture ./internal/ruler/bench/backup \
	./internal/proxy/killtest ./internal/kvd/consensus/sim ./outbox/postgres ./internal/lab/... \
	./batch/sim ./examples/... ./internal/backup/... ./internal/house ./internal/kvd/consensus \
	./internal/kvd/consensus/session ./internal/kvd/storm ./internal/kvd/wal/... ./internal/outbox/... ./internal/kvd/state ./internal/proxy/bouncer ./internal/proxy/process ./internal/proxy/core \
	./internal/proxy/cmd ./internal/proxy/examine ./internal/proxy/ldap ./internal/proxy/sqlscan/... \
	./internal/wire/binlog ./internal/wire/mywire ./internal/wire/pgrepl ./internal/wire/pgwire \
	./internal/wire/proxyproto ./internal/admin ./internal/cli/... ./internal/kvd/dump ./internal/kvd/wire \
	./internal/measure/loop ./internal/measure/outside \
	./internal/proxy/dash ./internal/proxy/pgbouncer ./internal/proxy/userlist ./outbox ./outbox/inbox \
	./outbox/sink ./outbox/sink/amqp ./outbox/sink/kafka ./outbox/sink/nats ./outbox/sink/open ./outbox/sink/redis ./outbox/sink/stdout ./outbox/sqlite
# The packages with the race detector finish long before the others. These run after them,
# without it: otherwise processors would be idle at the end.
late := ./internal/ruler/...

# By default a program with the race detector sleeps for a second before it exits,
# and tests run hundreds of them.
export GORACE ?= atexit_sleep_ms=10

# make test leaves out the tests that take longest (testkit.Long), make test-all does not.
SHORT ?= -short

# One build for the linters and the tests without the race detector, and one for those with
# it. Both are without debug information, which is a part of the compiler's work and half of
# the linker's (stack traces still have line numbers), and without the checkout's path, so
# that checkouts share the build cache. The compiler and the linker run without garbage
# collection, which saves a quarter of their work; -toolexec does that where GOGC applies
# to the tests. Tests collect garbage less often; those that limit memory call the collector
# themselves.
lean := $(shell go env GOFLAGS) -mod=readonly -trimpath -gcflags=all=-dwarf=false -ldflags=-s
flags := GOFLAGS="$(lean)"
instrumented := GOFLAGS="$(lean) -race"
frugal := GOGC=off GOMEMLIMIT=2GiB
gotest := scripts/in-memory go test -toolexec 'env $(frugal)' -vet=off -timeout $(TEST_TIMEOUT)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: ## Install the servers that the tests need, if missing
	@scripts/setup

.PHONY: kafka
kafka: ## Fetch Kafka into bin/kafka, for the tests that use it
	@scripts/kafka

.PHONY: kafka-or-not
kafka-or-not:
	@scripts/kafka || echo "continuing without Kafka: its jars could not be fetched"

.PHONY: build
build: ## Build bin/weir
	go build -mod=readonly -o bin/weir ./cmd/weir

.PHONY: peers
peers: ## Build bin/weir-peers, the other outboxes of weir bench outbox
	go build -C bench/peers -mod=readonly -o ../../bin/weir-peers .

.PHONY: run
run: ## Run weir demo on private servers of both engines
	@scripts/run

.PHONY: cross
cross: ## Compile what runs on macOS, and the libraries for Windows
	GOOS=darwin GOARCH=arm64 go build -mod=readonly -o /dev/null ./cmd/weir
	GOOS=darwin GOARCH=amd64 go build -mod=readonly -o /dev/null ./cmd/weir
	GOOS=darwin GOARCH=arm64 go build -mod=readonly ./batch/... ./outbox/... ./kv/...
	GOOS=windows GOARCH=amd64 go build -mod=readonly ./batch/... ./outbox/... ./kv/...

.PHONY: release
release: ## Build a release into out/release
	@scripts/release

.PHONY: lint
lint: vet staticcheck ## Check the code with vet, staticcheck and gofumpt

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in the dependencies
	@scripts/vulncheck

.PHONY: staticcheck
staticcheck:
	@scripts/setup lint
	GOGC=400 GOMEMLIMIT=6GiB $(flags) bin/tools/staticcheck $(PKG)

# vet compiles the packages that staticcheck and the tests start with.
.PHONY: vet
vet:
	@scripts/setup lint
	$(frugal) $(flags) go vet $(PKG)
	@out=$$(bin/tools/gofumpt -l $(PKG:/...=)); \
	if [ -n "$$out" ]; then echo "not formatted (bin/tools/gofumpt -w):"; echo "$$out"; exit 1; fi

# lint has already vetted the packages; go test would vet them again.
.PHONY: check
check: lint ## Lint PKG and test it with the race detector: make check PKG=./internal/cli
	GOGC=300 $(instrumented) $(gotest) $(PKG)

# vet runs, and compiles, while servers are being installed: the one needs processors, the
# other the network. WITH names further targets, as in .ci/run.
.PHONY: ready
ready:
	@scripts/setup compiler
	@$(MAKE) --no-print-directory -j --output-sync=recurse setup vet $(WITH)

# staticcheck uses the processors while tests wait for their servers.
.PHONY: test
test: ready ## Lint and test everything but long tests, with the race detector where it finds most
	@$(MAKE) --no-print-directory -j staticcheck test-plain test-raced-and-late

.PHONY: test-all
test-all: ## Lint and test everything, with the long tests
	@$(MAKE) --no-print-directory test SHORT= TEST_TIMEOUT=40m

# Each target has its own log, for scripts/again.
.PHONY: test-plain
test-plain:
	@GOGC=300 $(flags) scripts/logged out/$@.log $(gotest) $(SHORT) -p $(TEST_JOBS) $(plain)

.PHONY: test-raced-and-late
test-raced-and-late:
	@code=0; \
	$(MAKE) --no-print-directory test-raced || code=1; \
	$(MAKE) --no-print-directory test-late || code=1; \
	exit $$code

.PHONY: test-late
test-late:
	@late=$$(scripts/late "$(plain)" "$(late)") || exit 1; \
	GOGC=300 $(flags) scripts/logged out/$@.log $(gotest) $(SHORT) -p $(RACE_JOBS) $$late

.PHONY: test-raced
test-raced:
	@raced=$$(scripts/raced $(plain) $(late)) || exit 1; \
	GOGC=300 $(instrumented) scripts/logged out/$@.log $(gotest) $(SHORT) -p $(RACE_JOBS) $$raced

.PHONY: again
again:
	@raced=$$(scripts/raced $(plain) $(late)) || exit 1; race=; \
	! echo "$$raced" | grep -qxF '$(PKG)' || race=-race; \
	GOGC=300 GOFLAGS="$(lean) $$race" $(gotest) $(SHORT) -count=1 -run '$(TESTS)' $(PKG)

.PHONY: test-matrix
test-matrix: setup ## Run the suites on other versions and settings of the servers
	scripts/test-matrix

.PHONY: race
race: setup ## Repeat all tests COUNT times with the race detector
	GOGC=300 $(instrumented) scripts/in-memory go test -vet=off -count=$(COUNT) -timeout 5h $(PKG)

# Many rounds of what `make test` runs a few rounds of: seeds of the simulator and of the
# log's disks, kills, storms, damaged archives, many tables, deliberate bugs.
.PHONY: torture
torture: setup ## Run for hours many rounds of the tests that make test keeps short
	go test -mod=readonly -count=1 -timeout 0 -run '^TestSeeds$$' ./internal/kvd/consensus/sim -seeds 20000
	go test -mod=readonly -count=1 -timeout 0 -run '^TestScenesAreFaultlessByThemselves$$' ./internal/kvd/consensus/sim -budget 200
	WEIR_TORTURE=1 go test -mod=readonly -count=1 -timeout 0 ./batch/sim
	go test -mod=readonly -count=1 -timeout 0 -run '^TestWhatWasFlushedSurvivesAnyCrash$$' ./internal/kvd/wal -seeds 20000
	go test -mod=readonly -race -count=1 -timeout 0 -run '^TestStorm$$' ./internal/kvd/storm -storm 20m
	go test -mod=readonly -race -count=1 -timeout 0 -run '^TestTorture$$' ./kv -torture 2m
	go test -mod=readonly -race -count=1 -timeout 0 -run '^TestPartitions$$' ./kv -partitions 2m
	WEIR_TORTURE=1 go test -mod=readonly -race -count=1 -timeout 0 -run '^(TestPostWhileLoopEnds|TestOracle|TestCheckBesideReadersOfTheList)$$' ./internal/proxy/netloop ./internal/kvd/state ./outbox/mysql
	WEIR_TORTURE=1 go test -mod=readonly -count=1 -timeout 0 -run '^TestKVFaults$$' ./internal/kvd/cmd
	WEIR_TORTURE=1 WEIR_TORTURE_MUTANTS=1 go test -mod=readonly -race -count=1 -timeout 0 ./internal/outbox/torture
	WEIR_TORTURE=1 go test -mod=readonly -race -count=1 -timeout 0 -run '^Test((Random)?TextsInEncodingsThatAreNotRead|NoStateReachesAnotherClient|EveryAnswerReachesItsOwner|CancelStorm|PauseUnderLoad|AnswersEqual|ServerKilledMidGroup)' ./internal/proxy/postgres ./internal/proxy/mysql
	WEIR_TORTURE=1 go test -mod=readonly -race -count=1 -timeout 0 -run '^(TestBenchBackupSmoke|TestScenarioEndToEnd)$$' ./cmd/weir ./internal/ruler/bench/backup
	WEIR_TORTURE=1 go test -mod=readonly -race -count=1 -timeout 0 -run '^Test(KilledBackupResumes|KilledRestoreResumes|PartitionsTriggers)$$' ./internal/backup/restore/...
	WEIR_DAMAGE=2000 go test -mod=readonly -race -count=1 -timeout 0 -run '^TestDamageIsFound$$' ./internal/backup/restore/...
	WEIR_TEST_TABLES=2000 go test -mod=readonly -count=1 -timeout 0 -run '^(TestManyTables|TestEmptyAndMany)$$' ./internal/backup/restore/...
	@scripts/patroni || echo "continuing without Patroni: it could not be installed"
	@scripts/drivers || echo "continuing without some drivers: they could not be installed"
	WEIR_KILLS=$(KILLS) WEIR_FAILOVERS=$(KILLS) WEIR_PATRONI_ROUNDS=10 WEIR_DRIVERS_ROUNDS=10 WEIR_UNREAD_CLIENTS=10000 go test -mod=readonly -count=1 -timeout 0 ./internal/proxy/killtest

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
