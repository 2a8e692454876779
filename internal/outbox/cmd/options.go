package outboxcmd

import (
	"errors"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/outbox"
)

// The groups of options, in the order of the help.
const (
	groupOutbox     = "Outbox"
	groupDelivery   = "Delivery"
	groupRetry      = "Failures"
	groupPartitions = "Partitions and history"
)

var outboxGroups = []string{cli.OwnFlags, groupOutbox, groupDelivery, groupRetry, groupPartitions, cli.GroupOperation}

// outboxOptions lists every option of `weir outbox`.
func outboxOptions() []cli.Option[outboxConfig] {
	relay := []string{"relay"}
	return []cli.Option[outboxConfig]{
		{
			Group: groupOutbox, Name: "db", Arg: "DSN", Secret: true,
			Help: "the database: postgres://, mysql://, mariadb://, sqlite:PATH or a path; the rest comes from PG* or MYSQL_* variables",
			Set:  func(c *outboxConfig, v string) error { c.dbText = v; return nil },
		},
		{
			Group: groupOutbox, Name: "table", Arg: "NAME", Default: outbox.DefaultTable, Help: "the outbox table, NAME or SCHEMA.NAME",
			Set: func(c *outboxConfig, v string) error { c.store.Table = v; return nil },
		},
		{
			Group: groupOutbox, Name: "max-tx-age", Arg: "DURATION", Default: "5m",
			Help:  "MySQL and MariaDB: how long a producer's transaction may take, where the account lacks the privilege PROCESS",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.store.MaxTxAge }),
		},
		{
			Group: groupDelivery, Name: "sink", Arg: "ADDRESS", Secret: true,
			Help:  "where messages go: nats:// kafka:// amqp:// redis:// http:// https:// or stdout:",
			Verbs: relay, Set: checkSink,
		},
		{
			Group: groupDelivery, Name: "claim", Arg: "HOW", Default: "auto",
			Help:  "how rows are fetched: auto, log, poll or skip-locked; only skip-locked does not keep the order of a key",
			Verbs: relay, Set: func(c *outboxConfig, v string) (err error) {
				if c.relay.Claim, err = outbox.ParseClaimMode(v); err != nil {
					return errors.New("want auto, log, poll or skip-locked")
				}
				return nil
			},
		},
		{
			Group: groupDelivery, Name: "workers", Arg: "N", Default: "4", Help: "batches published concurrently; with skip-locked, concurrent claims",
			Verbs: relay, Set: cli.Number(1, func(c *outboxConfig) *int { return &c.relay.Publishers }),
		},
		{
			Group: groupDelivery, Name: "batch", Arg: "N", Default: "500", Help: "maximum messages of one batch",
			Verbs: relay, Set: cli.Number(1, func(c *outboxConfig) *int { return &c.relay.Batch }),
		},
		{
			Group: groupDelivery, Name: "max-in-flight", Arg: "N", Default: "10000", Help: "maximum messages that are read but not yet recorded as delivered, shared equally by the shards; a crash repeats at most these",
			Verbs: relay, Set: cli.Number(1, func(c *outboxConfig) *int { return &c.relay.MaxInFlight }),
		},
		{
			Group: groupDelivery, Name: "max-in-flight-bytes", Arg: "SIZE", Default: "64MB", Help: "the same in bytes of payload",
			Verbs: relay, Set: func(c *outboxConfig, v string) (err error) {
				c.relay.MaxInFlightBytes, err = cli.ParseSize(v)
				return err
			},
		},
		{
			Group: groupDelivery, Name: "max-waiting", Arg: "N", Default: "500000",
			Help:  "maximum messages that the relay keeps in memory while they wait for a retry or for a failing destination; more stay in the table",
			Verbs: relay, Set: cli.Number(1, func(c *outboxConfig) *int { return &c.relay.MaxWaiting }),
		},
		{
			Group: groupDelivery, Name: "log-wait", Arg: "DURATION", Default: "30s",
			Help:  "stop following the database's log, and poll, if the relay could read nothing from it for this long",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.LogWait }),
		},
		{
			Group: groupDelivery, Name: "log-keep", Arg: "SIZE", Default: "256MB",
			Help:  "the same if the server keeps more log than this for the relay",
			Verbs: relay, Set: func(c *outboxConfig, v string) (err error) {
				c.relay.LogKeep, err = cli.ParseSize(v)
				return err
			},
		},
		{
			Group: groupDelivery, Name: "rate", Arg: "N", Default: cli.None, Help: "maximum messages per second",
			Verbs: relay, Set: putRate,
		},
		{
			Group: groupDelivery, Name: "unordered", Help: "let messages of one key overtake each other",
			Verbs: relay, Set: cli.Switch(func(c *outboxConfig) *bool { return &c.relay.Unordered }),
		},
		{
			Group: groupDelivery, Name: "ack-delay", Arg: "DURATION", Default: "20ms", Help: "how long to collect deliveries before one statement records them; none for no wait",
			Verbs: relay, Set: func(c *outboxConfig, v string) error {
				if cli.IsNone(v) {
					c.relay.AckDelay = -1
					return nil
				}
				return cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.relay.AckDelay })(c, v)
			},
		},
		{
			Group: groupDelivery, Name: "min-poll", Arg: "DURATION", Default: "2ms", Help: "shortest pause after a read that found nothing more; also between two reads of the log while messages arrive faster",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.MinPoll }),
		},
		{
			Group: groupDelivery, Name: "max-poll", Arg: "DURATION", Default: "100ms", Help: "longest such pause",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.MaxPoll }),
		},
		{
			Group: groupDelivery, Name: "window", Arg: "DURATION", Default: cli.None, Help: "with skip-locked and partitions: look only for rows that are younger than this, and for older ones every --sweep-every",
			Verbs: relay, Set: cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.relay.Window }),
		},
		{
			Group: groupDelivery, Name: "sweep-every", Arg: "DURATION", Default: "30s", Help: "how often the whole table is searched for rows that were missed",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.SweepEvery }),
		},
		{
			Group: groupDelivery, Name: "lead-every", Was: "take-over", Arg: "DURATION", Default: "250ms", Help: "how often a standby relay tries to become leader",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.TakeOver }),
		},
		{
			Group: groupDelivery, Name: "drain-timeout", Arg: "DURATION", Default: "10s", Help: "how long a stop waits for what is in flight",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.DrainTimeout }),
		},
		{
			Group: groupRetry, Name: "retry-max", Arg: "N", Default: "10", Help: "attempts before a message becomes a dead letter",
			Verbs: relay, Set: cli.Number(1, func(c *outboxConfig) *int { return &c.relay.Retry.MaxAttempts }),
		},
		{
			Group: groupRetry, Name: "retry-base", Arg: "DURATION", Default: "200ms", Help: "wait after the first failed attempt; each further one doubles it",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.Retry.Base }),
		},
		{
			Group: groupRetry, Name: "retry-cap", Arg: "DURATION", Default: "5m", Help: "longest wait between attempts",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.relay.Retry.Max }),
		},
		{
			Group: groupRetry, Name: "purge-dead-after", Arg: "DURATION", Default: cli.None, Help: "delete dead letters of this age",
			Verbs: relay, Set: cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.maintenance.PurgeDead }),
		},
		{
			Group: groupPartitions, Name: "partition-period", Arg: "PERIOD", Default: "auto", Help: "what the table must be partitioned by: day or month; auto accepts any",
			Verbs: relay, Set: func(c *outboxConfig, v string) (err error) {
				if v == "auto" {
					return nil
				}
				c.maintenance.Partitions.Period, err = outbox.ParsePeriod(v)
				if err != nil || v == outbox.Unpartitioned.String() {
					return errors.New("want auto, day or month")
				}
				return nil
			},
		},
		{
			Group: groupPartitions, Name: "partition-ahead", Arg: "DURATION", Default: "7d", Help: "create partitions this far ahead",
			Verbs: []string{"relay", "migrate", "partitions"}, Set: cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.partitions.Ahead }),
		},
		{
			Group: groupPartitions, Name: "partition-lookback", Arg: "DURATION", Default: "1d", Help: "create partitions this far back",
			Verbs: []string{"relay", "migrate", "partitions"}, Set: cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.partitions.Lookback }),
		},
		{
			Group: groupPartitions, Name: "partition-keep", Arg: "DURATION", Default: cli.None, Help: "drop partitions that ended this long ago, unless messages in them are pending",
			Verbs: []string{"relay", "partitions"}, Set: cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.partitions.Keep }),
		},
		{
			Group: groupPartitions, Name: "purge-after", Arg: "DURATION", Default: cli.None, Help: "delete delivered messages of this age, which layout history keeps",
			Verbs: relay, Set: cli.Span(cli.None, func(c *outboxConfig) *time.Duration { return &c.maintenance.PurgeDelivered }),
		},
		{
			Group: cli.GroupOperation, Name: "admin", Arg: "ADDRESS", Default: "127.0.0.1:9188", Help: "where the live page, /metrics, /healthz, /readyz and /status.json are served; off for nowhere",
			Verbs: relay, Set: func(c *outboxConfig, v string) error {
				if c.admin = v; v == "off" {
					c.admin = ""
					return nil
				}
				return cli.CheckHostPort(v)
			},
		},
		{
			Group: cli.GroupOperation, Name: "status-every", Arg: "DURATION", Default: "5s", Help: "how often the rows of the tables are counted; less often if counting takes long",
			Verbs: relay, Set: cli.Span("", func(c *outboxConfig) *time.Duration { return &c.statusEvery }),
		},
		{
			Group: cli.GroupOperation, Name: "log-level", Arg: "LEVEL", Default: "info", Help: "debug, info, warn or error",
			Verbs: relay, Set: cli.OneOf(func(c *outboxConfig, v string) { _ = c.logLevel.UnmarshalText([]byte(v)) }, "debug", "info", "warn", "error"),
		},
		{
			Group: cli.GroupOperation, Name: "log-format", Arg: "FORMAT", Default: "auto", Help: "text, json, or auto: text on a terminal, JSON elsewhere",
			Verbs: relay, Set: cli.OneOf(func(c *outboxConfig, v string) { c.logFormat = v }, "auto", "text", "json"),
		},
	}
}

func putRate(c *outboxConfig, v string) error {
	if cli.IsNone(v) {
		c.relay.Rate = 0
		return nil
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || !(n > 0 && n <= 1e9) {
		return errors.New("want messages a second, above zero, or none")
	}
	c.relay.Rate = n
	return nil
}
