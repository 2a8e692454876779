package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// The brokers that all tests of a package share.
var (
	sharedNATS  = Share(fast(lab.StartNATS))
	sharedRedis = Share(fast(lab.StartRedis))
	sharedS3    = Share(fast(lab.StartS3))
)

func fast[S any](start func(context.Context, lab.BrokerConfig) (S, error)) func(context.Context) (S, error) {
	return func(ctx context.Context) (S, error) { return start(ctx, lab.BrokerConfig{Durability: lab.Fast}) }
}

// SharedNATS returns the package's NATS server, which flushes nothing.
func SharedNATS(tb testing.TB) *lab.NATS {
	tb.Helper()
	return sharedNATS.Get(tb)
}

// SharedRedis returns the package's Redis server, which flushes nothing.
func SharedRedis(tb testing.TB) *lab.Redis {
	tb.Helper()
	return sharedRedis.Get(tb)
}

// SharedS3 returns the package's S3 server.
func SharedS3(tb testing.TB) *lab.S3 {
	tb.Helper()
	return sharedS3.Get(tb)
}

// KnowNoAuthorities makes the programs that tests start read no public CA certificates, which
// no server of the lab uses: MariaDB's clients would parse all of the system's, which takes 50
// ms of CPU time, even for a local socket. It is for a package's TestMain; Main calls it.
func KnowNoAuthorities() {
	if err := os.Setenv("SSL_CERT_FILE", os.DevNull); err != nil {
		panic(err)
	}
}

// inMain reports whether Main will stop the servers that tests start.
var inMain bool

// Main runs the tests of a package and then stops their shared servers. It is the body of the
// package's TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
func Main(m *testing.M) int {
	inMain = true
	KnowNoAuthorities()
	code := m.Run()
	err := removeWeir()
	for _, s := range allShared {
		err = errors.Join(err, s.discard())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// Shared is one server for all tests of a package: it starts with the first test that needs it
// and ends with Main. Each test uses its own database, or its own topics, queues, buckets or
// keys, and neither stops nor breaks the server: a test that does must start its own. A failed
// start is not repeated: every test that needs the server ends as the first one did.
type Shared[S discarder] struct {
	start func(context.Context) (S, error)

	mu      sync.Mutex // guards the fields below
	tried   bool
	server  S
	failure error
}

// discarder is a server that can be discarded.
type discarder interface{ Discard(context.Context) error }

// allShared are the servers that Main stops.
var allShared []interface{ discard() error }

// Share returns a shared server of a package's tests, which start starts.
func Share[S discarder](start func(context.Context) (S, error)) *Shared[S] {
	s := &Shared[S]{start: start}
	allShared = append(allShared, s)
	return s
}

// Get returns the server. If it is not installed, tb is skipped.
func (s *Shared[S]) Get(tb testing.TB) S {
	tb.Helper()
	if !inMain {
		tb.Fatal("a shared server would never be stopped: the package needs func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tried {
		// Not tb.Context: the server outlives tb.
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		s.tried = true
		s.server, s.failure = s.start(ctx)
	}
	check(tb, s.failure)
	return s.server
}

func (s *Shared[S]) discard() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tried || s.failure != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return s.server.Discard(ctx)
}
