package labtest

import (
	"context"
	"os"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// EnvRequireKafka, if it is 1, makes a missing Kafka a failure. Kafka is not part of any
// distribution, so that it may be missing even in CI.
const EnvRequireKafka = "WEIR_REQUIRE_KAFKA"

// NATS starts a NATS server for the duration of tb.
func NATS(tb testing.TB, cfg lab.BrokerConfig) *lab.NATS {
	tb.Helper()
	return private(tb, cfg, lab.StartNATS)
}

// Redis starts a Redis server for the duration of tb.
func Redis(tb testing.TB, cfg lab.BrokerConfig) *lab.Redis {
	tb.Helper()
	return private(tb, cfg, lab.StartRedis)
}

// RabbitMQ starts a RabbitMQ broker for the duration of tb, which takes 5 to 10 s.
func RabbitMQ(tb testing.TB, cfg lab.BrokerConfig) *lab.RabbitMQ {
	tb.Helper()
	return private(tb, cfg, lab.StartRabbitMQ)
}

// Kafka starts a Kafka node for the duration of tb, which takes 2 to 8 s. If it is not
// installed, tb is skipped, in CI too, unless WEIR_REQUIRE_KAFKA=1.
func Kafka(tb testing.TB, cfg lab.BrokerConfig) *lab.Kafka {
	tb.Helper()
	kafkaOrSkip(tb)
	return private(tb, cfg, lab.StartKafka)
}

// S3 starts an S3 server for the duration of tb.
func S3(tb testing.TB, cfg lab.BrokerConfig) *lab.S3 {
	tb.Helper()
	return private(tb, cfg, lab.StartS3)
}

// LDAP starts an OpenLDAP server with users for the duration of tb.
func LDAP(tb testing.TB, users ...lab.LDAPUser) *lab.LDAP {
	tb.Helper()
	return private(tb, lab.BrokerConfig{}, func(ctx context.Context, cfg lab.BrokerConfig) (*lab.LDAP, error) {
		return lab.StartLDAP(ctx, cfg, users...)
	})
}

// RequireNATS skips tb if NATS is not installed, for tests that start their servers themselves.
func RequireNATS(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindNATS(tb.Context(), "")
	check(tb, err)
}

// RequireRedis does the same for Redis.
func RequireRedis(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindRedis(tb.Context(), "")
	check(tb, err)
}

// RequireRabbitMQ does the same for RabbitMQ.
func RequireRabbitMQ(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindRabbitMQ(tb.Context(), "")
	check(tb, err)
}

// RequireS3 does the same for the S3 server.
func RequireS3(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindS3(tb.Context(), "")
	check(tb, err)
}

func kafkaOrSkip(tb testing.TB) {
	tb.Helper()
	_, _, err := lab.FindKafka(tb.Context(), "")
	if lab.NotInstalled(err) && os.Getenv(EnvRequireKafka) != "1" {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// stopper is a server that can be stopped.
type stopper interface{ Stop(context.Context) error }

// private starts a server for one test.
func private[S stopper](tb testing.TB, cfg lab.BrokerConfig, start func(context.Context, lab.BrokerConfig) (S, error)) S {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	s, err := start(ctx, cfg)
	check(tb, err)
	tb.Cleanup(func() {
		stop(tb, s.Stop)
	})
	return s
}
