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

// The servers that all tests of a package share: each starts with the first test
// that asks for it and stops with Main. A test keeps to topics, queues, buckets
// or keys of its own, and neither stops nor breaks the server: for that, it
// starts one for itself.
var (
	sharedNATS     = shared[*lab.NATS]{start: lab.StartNATS}
	sharedRedis    = shared[*lab.Redis]{start: lab.StartRedis}
	sharedRabbitMQ = shared[*lab.RabbitMQ]{start: lab.StartRabbitMQ}
	sharedKafka    = shared[*lab.Kafka]{start: lab.StartKafka}
	sharedS3       = shared[*lab.S3]{start: lab.StartS3}
)

// SharedNATS returns the package's NATS server, which flushes nothing.
func SharedNATS(tb testing.TB) *lab.NATS {
	tb.Helper()
	return sharedNATS.get(tb)
}

// SharedRedis returns the package's Redis server, which flushes nothing.
func SharedRedis(tb testing.TB) *lab.Redis {
	tb.Helper()
	return sharedRedis.get(tb)
}

// SharedRabbitMQ returns the package's RabbitMQ broker.
func SharedRabbitMQ(tb testing.TB) *lab.RabbitMQ {
	tb.Helper()
	return sharedRabbitMQ.get(tb)
}

// SharedKafka returns the package's Kafka node, which flushes nothing, or skips
// tb as Kafka does.
func SharedKafka(tb testing.TB) *lab.Kafka {
	tb.Helper()
	kafkaOrSkip(tb)
	return sharedKafka.get(tb)
}

// SharedS3 returns the package's S3 server.
func SharedS3(tb testing.TB) *lab.S3 {
	tb.Helper()
	return sharedS3.get(tb)
}

// inMain says that Main will stop what tests start.
var inMain bool

// Main runs the tests of a package and then stops the servers that they have
// shared. It is the package's TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
func Main(m *testing.M) int {
	inMain = true
	code := m.Run()
	err := errors.Join(
		sharedNATS.stop(), sharedRedis.stop(), sharedRabbitMQ.stop(), sharedKafka.stop(), sharedS3.stop(), removeWeir(),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// shared is one server for many tests. A start that failed is not tried again:
// every test that needs the server ends as the first one did.
type shared[S stopper] struct {
	start func(context.Context, lab.BrokerConfig) (S, error)

	mu      sync.Mutex // guards what follows
	tried   bool
	server  S
	failure error
}

func (s *shared[S]) get(tb testing.TB) S {
	tb.Helper()
	if !inMain {
		tb.Fatal("nobody would stop a shared server: the package needs func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tried {
		// Not tb.Context: the server outlives tb.
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		s.tried = true
		s.server, s.failure = s.start(ctx, lab.BrokerConfig{Durability: lab.Fast})
	}
	check(tb, s.failure)
	return s.server
}

func (s *shared[S]) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tried || s.failure != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return s.server.Stop(ctx)
}
