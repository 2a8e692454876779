package main

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// The groups of options, in the order of the help.
const (
	groupVerb       = "This command"
	groupOutbox     = "Outbox"
	groupDelivery   = "Delivery"
	groupRetry      = "Failures"
	groupPartitions = "Partitions and history"
)

var outboxGroups = []string{groupVerb, groupOutbox, groupDelivery, groupRetry, groupPartitions, groupOps}

// outboxOptions lists every option of `weir outbox`.
func outboxOptions() []outboxOption {
	relay := []string{"relay"}
	return []outboxOption{
		{
			option: option{
				group: groupOutbox, name: "db", arg: "DSN", secret: true,
				help: "the database: postgres://, mysql://, mariadb://, sqlite:PATH or a path; what it leaves open comes from PG* or MYSQL_* variables",
			},
			put: func(c *outboxConfig, v string) error { c.dbText = v; return nil },
		},
		{
			option: option{group: groupOutbox, name: "table", arg: "NAME", def: outbox.DefaultTable, help: "the outbox table, NAME or SCHEMA.NAME"},
			put:    func(c *outboxConfig, v string) error { c.store.Table = v; return nil },
		},
		{
			option: option{
				group: groupOutbox, name: "max-tx-age", arg: "DURATION", def: "5m",
				help: "longest transaction of a producer, where the account lacks MySQL's privilege PROCESS",
			},
			verbs: relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.store.MaxTxAge }),
		},
		{
			option: option{
				group: groupDelivery, name: "sink", arg: "ADDRESS", secret: true,
				help: "where messages go: nats:// kafka:// amqp:// redis:// http:// https:// or stdout:",
			},
			verbs: relay, put: checkSink,
		},
		{
			option: option{
				group: groupDelivery, name: "claim", arg: "HOW", def: "auto",
				help: "how rows are fetched: auto, log, poll or skip-locked; only the last gives up the order of keys",
			},
			verbs: relay, put: func(c *outboxConfig, v string) (err error) {
				if c.relay.Claim, err = outbox.ParseClaimMode(v); err != nil {
					return errors.New("want auto, log, poll or skip-locked")
				}
				return nil
			},
		},
		{
			option: option{group: groupDelivery, name: "workers", arg: "N", def: "4", help: "batches given to the broker at a time; with skip-locked, claims at a time"},
			verbs:  relay, put: outboxNumber(1, func(c *outboxConfig) *int { return &c.relay.Publishers }),
		},
		{
			option: option{group: groupDelivery, name: "batch", arg: "N", def: "500", help: "most messages of one batch"},
			verbs:  relay, put: outboxNumber(1, func(c *outboxConfig) *int { return &c.relay.Batch }),
		},
		{
			option: option{group: groupDelivery, name: "max-in-flight", arg: "N", def: "10000", help: "most messages read and not yet noted as delivered: what a crash may repeat"},
			verbs:  relay, put: outboxNumber(1, func(c *outboxConfig) *int { return &c.relay.MaxInFlight }),
		},
		{
			option: option{group: groupDelivery, name: "max-in-flight-bytes", arg: "SIZE", def: "64MB", help: "the same in bytes of payload"},
			verbs:  relay, put: func(c *outboxConfig, v string) (err error) {
				c.relay.MaxInFlightBytes, err = parseSize(v)
				return err
			},
		},
		{
			option: option{
				group: groupDelivery, name: "max-waiting", arg: "N", def: "500000",
				help: "most messages that memory knows of while they wait for another attempt or a destination that takes none; more stay in the table",
			},
			verbs: relay, put: outboxNumber(1, func(c *outboxConfig) *int { return &c.relay.MaxWaiting }),
		},
		{
			option: option{
				group: groupDelivery, name: "log-wait", arg: "DURATION", def: "30s",
				help: "let the database's log go, and poll, when nothing could be taken from it for so long",
			},
			verbs: relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.LogWait }),
		},
		{
			option: option{
				group: groupDelivery, name: "log-keep", arg: "SIZE", def: "256MB",
				help: "the same when the server keeps more of it than this for the relay",
			},
			verbs: relay, put: func(c *outboxConfig, v string) (err error) {
				c.relay.LogKeep, err = parseSize(v)
				return err
			},
		},
		{
			option: option{group: groupDelivery, name: "rate", arg: "N", def: "none", help: "most messages a second"},
			verbs:  relay, put: putRate,
		},
		{
			option: option{group: groupDelivery, name: "unordered", help: "let messages of one key overtake each other"},
			verbs:  relay, put: putUnordered,
		},
		{
			option: option{group: groupDelivery, name: "ack-delay", arg: "DURATION", def: "20ms", help: "how long deliveries are gathered before they are noted with one statement; none for no wait"},
			verbs:  relay, put: func(c *outboxConfig, v string) error {
				if v == "none" || v == "0" {
					c.relay.AckDelay = -1
					return nil
				}
				return span("none", func(c *outboxConfig) *time.Duration { return &c.relay.AckDelay })(c, v)
			},
		},
		{
			option: option{group: groupDelivery, name: "min-poll", arg: "DURATION", def: "2ms", help: "shortest pause between two reads that found nothing more"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.MinPoll }),
		},
		{
			option: option{group: groupDelivery, name: "max-poll", arg: "DURATION", def: "100ms", help: "longest pause of that kind"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.MaxPoll }),
		},
		{
			option: option{group: groupDelivery, name: "window", arg: "DURATION", def: "none", help: "with skip-locked and partitions: look for rows no older than this, and for others every --sweep-every"},
			verbs:  relay, put: span("none", func(c *outboxConfig) *time.Duration { return &c.relay.Window }),
		},
		{
			option: option{group: groupDelivery, name: "sweep-every", arg: "DURATION", def: "30s", help: "how often the whole table is searched for rows that were missed"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.SweepEvery }),
		},
		{
			option: option{group: groupDelivery, name: "take-over", arg: "DURATION", def: "250ms", help: "how often a relay that stands by tries to lead"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.TakeOver }),
		},
		{
			option: option{group: groupDelivery, name: "drain-timeout", arg: "DURATION", def: "10s", help: "how long a stop waits for what is in flight"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.DrainTimeout }),
		},
		{
			option: option{group: groupRetry, name: "retry-max", arg: "N", def: "10", help: "attempts before a message becomes a dead letter"},
			verbs:  relay, put: outboxNumber(1, func(c *outboxConfig) *int { return &c.relay.Retry.MaxAttempts }),
		},
		{
			option: option{group: groupRetry, name: "retry-base", arg: "DURATION", def: "200ms", help: "wait after the first failed attempt; each further one doubles it"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.Retry.Base }),
		},
		{
			option: option{group: groupRetry, name: "retry-cap", arg: "DURATION", def: "5m", help: "longest wait between attempts"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.relay.Retry.Max }),
		},
		{
			option: option{group: groupRetry, name: "purge-dead-after", arg: "DURATION", def: "never", help: "delete dead letters of this age"},
			verbs:  relay, put: span("never", func(c *outboxConfig) *time.Duration { return &c.maintenance.PurgeDead }),
		},
		{
			option: option{group: groupPartitions, name: "partition-period", arg: "PERIOD", def: "auto", help: "what the table must be partitioned by: day or month; auto is whatever it is"},
			verbs:  relay, put: func(c *outboxConfig, v string) (err error) {
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
			option: option{group: groupPartitions, name: "partition-ahead", arg: "DURATION", def: "7d", help: "partitions exist for this long ahead"},
			verbs:  []string{"relay", "migrate", "partitions"}, put: span("none", func(c *outboxConfig) *time.Duration { return &c.partitions.Ahead }),
		},
		{
			option: option{group: groupPartitions, name: "partition-lookback", arg: "DURATION", def: "1d", help: "and for this long back"},
			verbs:  []string{"relay", "migrate", "partitions"}, put: span("none", func(c *outboxConfig) *time.Duration { return &c.partitions.Lookback }),
		},
		{
			option: option{group: groupPartitions, name: "partition-keep", arg: "DURATION", def: "forever", help: "those that ended this long ago are dropped, unless messages in them are pending"},
			verbs:  []string{"relay", "partitions"}, put: span("forever", func(c *outboxConfig) *time.Duration { return &c.partitions.Keep }),
		},
		{
			option: option{group: groupPartitions, name: "purge-after", arg: "DURATION", def: "never", help: "delete delivered messages of this age, which layout history keeps"},
			verbs:  relay, put: span("never", func(c *outboxConfig) *time.Duration { return &c.maintenance.PurgeDelivered }),
		},
		{
			option: option{group: groupOps, name: "admin", arg: "ADDRESS", def: "127.0.0.1:9188", help: "where /metrics, /healthz, /readyz and /status.json are served; off for nowhere"},
			verbs:  relay, put: func(c *outboxConfig, v string) error {
				if c.admin = v; v == "off" {
					c.admin = ""
					return nil
				}
				return checkHostPort(v)
			},
		},
		{
			option: option{group: groupOps, name: "status-every", arg: "DURATION", def: "5s", help: "how often the tables are counted, at most a twentieth of the time"},
			verbs:  relay, put: span("", func(c *outboxConfig) *time.Duration { return &c.statusEvery }),
		},
		{
			option: option{group: groupOps, name: "log-level", arg: "LEVEL", def: "info", help: "debug, info, warn or error"},
			verbs:  relay, put: func(c *outboxConfig, v string) error {
				if strings.Trim(v, "abcdefghijklmnopqrstuvwxyz") != "" || c.logLevel.UnmarshalText([]byte(v)) != nil {
					return errors.New("want debug, info, warn or error")
				}
				return nil
			},
		},
		{
			option: option{group: groupOps, name: "log-format", arg: "FORMAT", def: "auto", help: "text, json, or auto: text on a terminal, JSON elsewhere"},
			verbs:  relay, put: func(c *outboxConfig, v string) error {
				if v != "auto" && v != "text" && v != "json" {
					return errors.New("want auto, text or json")
				}
				c.logFormat = v
				return nil
			},
		},
	}
}

func putRate(c *outboxConfig, v string) error {
	if v == "none" {
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

func putUnordered(c *outboxConfig, v string) (err error) {
	if c.relay.Unordered, err = strconv.ParseBool(v); err != nil {
		return errors.New("want true or false")
	}
	return nil
}
