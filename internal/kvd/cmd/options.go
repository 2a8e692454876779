package kvcmd

import (
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/replica"
)

// kvConfig is the configuration of weir kv serve.
type kvConfig struct {
	replica replica.Config

	durability          string
	tls                 tlsFiles
	redisTLS            bool
	secretFile          string
	passwordFile, admin string
	logLevel            slog.Level
	logFormat           string
}

// Groups of options, in the order of the help.
const (
	groupReplica  = "Replica"
	groupProtocol = "Consistency and speed"
	groupTrust    = "Who may connect"
)

var kvGroups = []string{groupReplica, groupServing, groupProtocol, groupTrust, cli.GroupOperation}

const groupServing = "Clients"

// kvOptions returns all options of weir kv serve.
func kvOptions() []cli.Option[kvConfig] {
	return append(append(kvReplicaOptions(), kvProtocolOptions()...), kvAccessOptions()...)
}

func kvReplicaOptions() []cli.Option[kvConfig] {
	return []cli.Option[kvConfig]{
		{
			Group: groupReplica, Name: "id", Arg: "N", Help: "this replica's number among the peers",
			Set: func(c *kvConfig, v string) (err error) {
				if c.replica.ID, err = strconv.ParseUint(v, 10, 32); err != nil || c.replica.ID == 0 {
					return errors.New("want a whole number, at least 1")
				}
				return nil
			},
		},
		{
			Group: groupReplica, Name: "peers", Arg: "LIST",
			Help: "the replicas, this one included: 1=host:port,2=host:port,3=host:port, each with a slash and its port for Redis clients, if replicas are to redirect them there: 1=host:port/6379",
			Set: func(c *kvConfig, v string) (err error) {
				c.replica.Members, err = replica.ParseMembers(v)
				return err
			},
		},
		{
			Group: groupReplica, Name: "cluster", Arg: "NAME", Default: "weir", Help: "name that all replicas and clients share; a different name is refused",
			Set: func(c *kvConfig, v string) error { c.replica.Cluster = v; return nil },
		},
		{
			Group: groupReplica, Name: "join", Help: "wait to be added to a running cluster (weir kv member add), instead of being one of its first members",
			Set: cli.Switch(func(c *kvConfig) *bool { return &c.replica.Join }),
		},
		{
			Group: groupReplica, Name: "data", Arg: "DIR", Help: "directory of the log and the snapshots, created if missing",
			Set: func(c *kvConfig, v string) error { c.replica.Dir = v; return nil },
		},
		{
			Group: groupReplica, Name: "durability", Arg: "WHERE", Default: "disk",
			Help: "disk: a write is flushed before it is acknowledged; memory: nothing is written to disk, and a replica that stops must come back as a new member",
			Set:  cli.OneOf(func(c *kvConfig, v string) { c.durability = v }, "disk", "memory"),
		},
		{
			Group: groupReplica, Name: "listen", Arg: "ADDRESS", Help: "where replicas and native clients connect (default this replica's address in --peers)",
			Set: func(c *kvConfig, v string) error { c.replica.Listen = v; return cli.CheckHostPort(v) },
		},
		{
			Group: groupServing, Name: "resp", Arg: "ADDRESS", Help: "where Redis clients connect (default this replica's address for them in --peers, or nowhere)",
			Set: func(c *kvConfig, v string) error { c.replica.Redis = v; return cli.CheckHostPort(v) },
		},
		{
			Group: groupServing, Name: "max-clients", Arg: "N", Default: "10000", Help: "maximum connections of Redis clients",
			Set: cli.Number(1, func(c *kvConfig) *int { return &c.replica.Front.MaxClients }),
		},
		{
			Group: groupServing, Name: "max-value", Arg: "SIZE", Default: "8MB", Help: "largest value that Redis clients may write",
			Set: func(c *kvConfig, v string) (err error) { c.replica.MaxValue, err = cli.ParseSize(v); return err },
		},
		{
			Group: groupServing, Name: "request-timeout", Arg: "DURATION", Default: "10s", Help: "how long a request of a Redis client may take",
			Set: cli.Span("", func(c *kvConfig) *time.Duration { return &c.replica.RequestTimeout }),
		},
		{
			Group: groupServing, Name: "session-idle", Arg: "DURATION", Default: "1h", Help: "forget the session of a native client that has not written for this long",
			Set: cli.Span("", func(c *kvConfig) *time.Duration { return &c.replica.SessionIdle }),
		},
	}
}

func kvProtocolOptions() []cli.Option[kvConfig] {
	return []cli.Option[kvConfig]{
		{
			Group: groupProtocol, Name: "preset", Arg: "NAME", Default: "raft-ht", Words: consensus.PresetNames(), Help: "raft, raft-ht, curp, curp-ht or curp-ho: who acknowledges writes and who answers reads",
			Set: func(c *kvConfig, v string) (err error) {
				c.replica.Preset = v
				c.replica.Switches, err = consensus.Preset(v)
				return err
			},
		},
		{
			Group: groupProtocol, Name: "reads", Arg: "HOW", Default: "lease", Help: "strong reads: lease assumes that the rates of clocks differ by less than a tenth; index asks a majority each time",
			Set: cli.OneOf(func(c *kvConfig, v string) { c.replica.IndexReads = v == "index" }, "lease", "index"),
		},
		{
			Group: groupProtocol, Name: "batch-delay", Arg: "DURATION", Default: "auto", Help: "auto: a round starts as soon as disk and network are free; a fixed delay of at most 10ms is for comparison",
			Set: func(c *kvConfig, v string) error {
				if d, err := time.ParseDuration(v); v == "auto" || err == nil && d == 0 {
					c.replica.BatchDelay = 0
					return nil
				}
				return cli.Span("", func(c *kvConfig) *time.Duration { return &c.replica.BatchDelay })(c, v)
			},
		},
		{
			Group: groupProtocol, Name: "peer-delay", Arg: "DURATION", Default: "0", Help: "collect messages to other replicas for this long before writing them, at most 10ms, for comparison; PUT /peer-delay at --admin changes it while the replica runs",
			Set: func(c *kvConfig, v string) (err error) {
				if c.replica.PeerDelay, err = time.ParseDuration(v); err != nil {
					return errors.New("want a duration such as 150us")
				}
				return nil
			},
		},
		{
			Group: groupProtocol, Name: "election-timeout", Arg: "DURATION", Default: "300ms", Help: "a replica that hears nothing from a leader stands for election after this time, or up to twice this",
			Set: cli.Span("", func(c *kvConfig) *time.Duration { return &c.replica.Election }),
		},
		{
			Group: groupProtocol, Name: "disk-timeout", Arg: "DURATION", Help: "a write that takes longer means that the disk hangs: the replica does not lead until the write has completed (default 1s, or twice the election timeout)",
			Set: cli.Span("", func(c *kvConfig) *time.Duration { return &c.replica.DiskTimeout }),
		},
		{
			Group: groupProtocol, Name: "snapshot-bytes", Arg: "SIZE", Default: "64MB", Help: "take a new snapshot after this much log",
			Set: func(c *kvConfig, v string) error {
				n, err := cli.ParseSize(v)
				c.replica.SnapshotBytes = int64(n)
				return err
			},
		},
		{
			Group: groupProtocol, Name: "snapshot-rate", Arg: "SIZE", Default: cli.None, Help: "maximum bytes per second at which a snapshot is sent to another replica",
			Set: func(c *kvConfig, v string) error {
				if cli.IsNone(v) {
					c.replica.SnapshotRate = 0
					return nil
				}
				n, err := cli.ParseSize(v)
				c.replica.SnapshotRate = int64(n)
				return err
			},
		},
		{
			Name: "link-latency", Arg: "DURATION", Help: "artificial delay of messages between replicas, one way, on loopback addresses",
			Hidden: true,
			Set: func(c *kvConfig, v string) error {
				d, err := time.ParseDuration(v)
				if err != nil || d < 0 {
					return errors.New("want a duration such as 25ms")
				}
				c.replica.Latency = nil
				if d > 0 {
					c.replica.Latency = func(_, _ uint64) time.Duration { return d }
				}
				return nil
			},
		},
	}
}

func kvAccessOptions() []cli.Option[kvConfig] {
	return []cli.Option[kvConfig]{
		{
			Group: groupTrust, Name: "secret-file", Arg: cli.ArgFile, Help: "secret that replicas and native clients must prove that they know; the same for all of them",
			Set: func(c *kvConfig, v string) error { c.secretFile = v; return nil },
		},
		{
			Group: groupTrust, Name: "resp-password-file", Arg: cli.ArgFile, Help: "passwords of Redis clients: lines PASSWORD, NAME:PASSWORD or NAME:PASSWORD:readonly",
			Set: func(c *kvConfig, v string) error { c.passwordFile = v; return nil },
		},
		{
			Group: groupTrust, Name: "tls-cert", Arg: cli.ArgFile, Help: "this replica's certificate, PEM; with it replicas and native clients speak TLS, with certificates on both sides",
			Set: func(c *kvConfig, v string) error { c.tls.cert = v; return nil },
		},
		{
			Group: groupTrust, Name: "tls-key", Arg: cli.ArgFile, Help: "its private key, PEM",
			Set: func(c *kvConfig, v string) error { c.tls.key = v; return nil },
		},
		{
			Group: groupTrust, Name: "tls-ca", Arg: cli.ArgFile, Help: "authorities that sign the certificates of replicas and native clients, PEM",
			Set: func(c *kvConfig, v string) error { c.tls.ca = v; return nil },
		},
		{
			Group: groupTrust, Name: "resp-tls", Help: "Redis clients speak TLS, too; they need no certificate",
			Set: cli.Switch(func(c *kvConfig) *bool { return &c.redisTLS }),
		},
		{
			Group: groupTrust, Name: "insecure", Help: "permit addresses that other machines can reach without a password or certificate",
			Set: cli.Switch(func(c *kvConfig) *bool { return &c.replica.Insecure }),
		},
		{
			Group: cli.GroupOperation, Name: "admin", Arg: "ADDRESS", Default: "127.0.0.1:9189", Help: "where the live page, /metrics, /healthz, /readyz and /status.json are served; off for nowhere",
			Set: func(c *kvConfig, v string) error {
				if c.admin = v; v == "off" {
					c.admin = ""
					return nil
				}
				return cli.CheckHostPort(v)
			},
		},
		{
			Group: cli.GroupOperation, Name: "log-level", Arg: "LEVEL", Default: "info", Help: "debug, info, warn or error",
			Set: cli.OneOf(func(c *kvConfig, v string) { _ = c.logLevel.UnmarshalText([]byte(v)) }, "debug", "info", "warn", "error"),
		},
		{
			Group: cli.GroupOperation, Name: "log-format", Arg: "FORMAT", Default: "auto", Help: "text, json, or auto: text on a terminal, JSON elsewhere",
			Set: cli.OneOf(func(c *kvConfig, v string) { c.logFormat = v }, "auto", "text", "json"),
		},
	}
}
