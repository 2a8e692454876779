package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/kvd/resp"
)

// kvOption is one thing about a replica that can be set: as a flag
// --batch-delay, in the environment as WEIR_KV_BATCH_DELAY, in the file as
// batch_delay.
type kvOption struct {
	option
	hidden bool // for measurements; not in the help
	put    func(c *kvConfig, value string) error
}

func (o *kvOption) env() string { return "WEIR_KV_" + strings.ToUpper(o.key()) }

// kvConfig is what the options add up to.
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

// The groups of options, in the order of the help.
const (
	groupReplica  = "Replica"
	groupProtocol = "Consistency and speed"
	groupTrust    = "Who may connect"
)

var kvGroups = []string{groupReplica, groupServing, groupProtocol, groupTrust, groupOps}

const groupServing = "Clients"

// kvOptions lists every option of `weir kv serve`.
func kvOptions() []kvOption {
	return append(append(kvReplicaOptions(), kvProtocolOptions()...), kvAccessOptions()...)
}

func kvReplicaOptions() []kvOption {
	return []kvOption{
		{
			option: option{group: groupReplica, name: "id", arg: "N", help: "this replica's number among the peers"},
			put: func(c *kvConfig, v string) (err error) {
				if c.replica.ID, err = strconv.ParseUint(v, 10, 32); err != nil || c.replica.ID == 0 {
					return errors.New("want a whole number, at least 1")
				}
				return nil
			},
		},
		{
			option: option{
				group: groupReplica, name: "peers", arg: "LIST",
				help: "the replicas, this one included: 1=host:port,2=host:port,3=host:port, each with the port for Redis clients behind a slash if they shall find it: 1=host:port/6379",
			},
			put: func(c *kvConfig, v string) (err error) {
				c.replica.Members, err = replica.ParseMembers(v)
				return err
			},
		},
		{
			option: option{group: groupReplica, name: "cluster", arg: "NAME", def: "weir", help: "name that all replicas and clients share; others are refused"},
			put:    func(c *kvConfig, v string) error { c.replica.Cluster = v; return nil },
		},
		{
			option: option{group: groupReplica, name: "join", help: "wait to be added to a cluster that runs (weir kv member add), instead of being one of its first members"},
			put: func(c *kvConfig, v string) (err error) {
				if c.replica.Join, err = strconv.ParseBool(v); err != nil {
					return errors.New("want true or false")
				}
				return nil
			},
		},
		{
			option: option{group: groupReplica, name: "data", arg: "DIR", help: "directory of the log and the snapshots, made if there is none"},
			put:    func(c *kvConfig, v string) error { c.replica.Dir = v; return nil },
		},
		{
			option: option{
				group: groupReplica, name: "durability", arg: "WHERE", def: "disk",
				help: "disk: what is acknowledged has been flushed; memory: nothing is written at all, a replica that stops must come back as a new member",
			},
			put: func(c *kvConfig, v string) error {
				if v != "disk" && v != "memory" {
					return errors.New("want disk or memory")
				}
				c.durability = v
				return nil
			},
		},
		{
			option: option{group: groupReplica, name: "listen", arg: "ADDRESS", help: "where replicas and native clients connect (default this replica's address among the peers)"},
			put:    func(c *kvConfig, v string) error { c.replica.Listen = v; return checkHostPort(v) },
		},
		{
			option: option{group: groupServing, name: "resp", arg: "ADDRESS", help: "where Redis clients connect (default what the peers say, or nowhere)"},
			put:    func(c *kvConfig, v string) error { c.replica.Redis = v; return checkHostPort(v) },
		},
		{
			option: option{group: groupServing, name: "max-clients", arg: "N", def: "10000", help: "most connections of Redis clients"},
			put:    kvNumber(1, func(c *kvConfig) *int { return &c.replica.Front.MaxClients }),
		},
		{
			option: option{group: groupServing, name: "max-value", arg: "SIZE", def: "8MB", help: "largest value that Redis clients may write"},
			put:    func(c *kvConfig, v string) (err error) { c.replica.MaxValue, err = parseSize(v); return err },
		},
		{
			option: option{group: groupServing, name: "request-timeout", arg: "DURATION", def: "10s", help: "how long a request of a Redis client may take"},
			put:    kvSpan(func(c *kvConfig) *time.Duration { return &c.replica.RequestTimeout }),
		},
		{
			option: option{group: groupServing, name: "session-idle", arg: "DURATION", def: "1h", help: "after how long without a write a session of a native client is forgotten"},
			put:    kvSpan(func(c *kvConfig) *time.Duration { return &c.replica.SessionIdle }),
		},
	}
}

func kvProtocolOptions() []kvOption {
	return []kvOption{
		{
			option: option{group: groupProtocol, name: "preset", arg: "NAME", def: "raft-ht", help: "raft, raft-ht, curp, curp-ht or curp-ho: who acknowledges and who answers"},
			put: func(c *kvConfig, v string) (err error) {
				c.replica.Preset = v
				c.replica.Switches, err = consensus.Preset(v)
				return err
			},
		},
		{
			option: option{group: groupProtocol, name: "reads", arg: "HOW", def: "lease", help: "strong reads: lease trusts clocks to run at the same rate within a tenth, index asks a majority each time"},
			put: func(c *kvConfig, v string) error {
				if v != "lease" && v != "index" {
					return errors.New("want lease or index")
				}
				c.replica.IndexReads = v == "index"
				return nil
			},
		},
		{
			option: option{group: groupProtocol, name: "batch-delay", arg: "DURATION", def: "auto", help: "auto: a round goes when disk and network are free; a duration of at most 10ms makes it wait, to be compared with"},
			put: func(c *kvConfig, v string) error {
				if d, err := time.ParseDuration(v); v == "auto" || err == nil && d == 0 {
					c.replica.BatchDelay = 0
					return nil
				}
				return kvSpan(func(c *kvConfig) *time.Duration { return &c.replica.BatchDelay })(c, v)
			},
		},
		{
			option: option{group: groupProtocol, name: "election-timeout", arg: "DURATION", def: "300ms", help: "a replica that hears nothing from a leader stands for election after this time, or up to twice this"},
			put:    kvSpan(func(c *kvConfig) *time.Duration { return &c.replica.Election }),
		},
		{
			option: option{group: groupProtocol, name: "disk-timeout", arg: "DURATION", help: "a disk that takes longer for a write hangs: the replica does not lead until it is done (default 1s, or twice the election timeout)"},
			put:    kvSpan(func(c *kvConfig) *time.Duration { return &c.replica.DiskTimeout }),
		},
		{
			option: option{group: groupProtocol, name: "snapshot-bytes", arg: "SIZE", def: "64MB", help: "log that calls for a new snapshot"},
			put: func(c *kvConfig, v string) error {
				n, err := parseSize(v)
				c.replica.SnapshotBytes = int64(n)
				return err
			},
		},
		{
			option: option{group: groupProtocol, name: "snapshot-rate", arg: "SIZE", def: "none", help: "most bytes a second that sending a snapshot takes of the network"},
			put: func(c *kvConfig, v string) error {
				if v == "none" {
					c.replica.SnapshotRate = 0
					return nil
				}
				n, err := parseSize(v)
				c.replica.SnapshotRate = int64(n)
				return err
			},
		},
		{
			option: option{name: "link-latency", arg: "DURATION", help: "artificial delay of messages between replicas, one way, on loopback addresses"},
			hidden: true,
			put: func(c *kvConfig, v string) error {
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

func kvAccessOptions() []kvOption {
	return []kvOption{
		{
			option: option{group: groupTrust, name: "secret-file", arg: argFile, help: "secret that replicas and native clients must prove to know, the same on all"},
			put:    func(c *kvConfig, v string) error { c.secretFile = v; return nil },
		},
		{
			option: option{group: groupTrust, name: "resp-password-file", arg: argFile, help: "passwords of Redis clients: lines PASSWORD, NAME:PASSWORD or NAME:PASSWORD:readonly"},
			put:    func(c *kvConfig, v string) error { c.passwordFile = v; return nil },
		},
		{
			option: option{group: groupTrust, name: "tls-cert", arg: argFile, help: "this replica's certificate, PEM; with it replicas and native clients speak TLS, with certificates on both sides"},
			put:    func(c *kvConfig, v string) error { c.tls.cert = v; return nil },
		},
		{
			option: option{group: groupTrust, name: "tls-key", arg: argFile, help: "its private key, PEM"},
			put:    func(c *kvConfig, v string) error { c.tls.key = v; return nil },
		},
		{
			option: option{group: groupTrust, name: "tls-ca", arg: argFile, help: "authorities that sign the certificates of replicas and native clients, PEM"},
			put:    func(c *kvConfig, v string) error { c.tls.ca = v; return nil },
		},
		{
			option: option{group: groupTrust, name: "resp-tls", help: "Redis clients speak TLS, too; they need no certificate"},
			put: func(c *kvConfig, v string) (err error) {
				if c.redisTLS, err = strconv.ParseBool(v); err != nil {
					return errors.New("want true or false")
				}
				return nil
			},
		},
		{
			option: option{group: groupTrust, name: "insecure", help: "permit addresses that others can reach with neither password nor certificate"},
			put: func(c *kvConfig, v string) (err error) {
				if c.replica.Insecure, err = strconv.ParseBool(v); err != nil {
					return errors.New("want true or false")
				}
				return nil
			},
		},
		{
			option: option{group: groupOps, name: "admin", arg: "ADDRESS", def: "127.0.0.1:9189", help: "where the page, /metrics, /healthz, /readyz and /status.json are served; off for nowhere"},
			put: func(c *kvConfig, v string) error {
				if c.admin = v; v == "off" {
					c.admin = ""
					return nil
				}
				return checkHostPort(v)
			},
		},
		{
			option: option{group: groupOps, name: "log-level", arg: "LEVEL", def: "info", help: "debug, info, warn or error"},
			put: func(c *kvConfig, v string) error {
				if strings.Trim(v, "abcdefghijklmnopqrstuvwxyz") != "" || c.logLevel.UnmarshalText([]byte(v)) != nil {
					return errors.New("want debug, info, warn or error")
				}
				return nil
			},
		},
		{
			option: option{group: groupOps, name: "log-format", arg: "FORMAT", def: "auto", help: "text, json, or auto: text on a terminal, JSON elsewhere"},
			put: func(c *kvConfig, v string) error {
				if v != "auto" && v != "text" && v != "json" {
					return errors.New("want auto, text or json")
				}
				c.logFormat = v
				return nil
			},
		},
	}
}

func kvNumber(least int, field func(*kvConfig) *int) func(*kvConfig, string) error {
	return func(c *kvConfig, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return fmt.Errorf("want a whole number, at least %d", least)
		}
		*field(c) = n
		return nil
	}
}

func kvSpan(field func(*kvConfig) *time.Duration) func(*kvConfig, string) error {
	return func(c *kvConfig, v string) error {
		d, err := parseSpan(v)
		if err != nil {
			return err
		}
		*field(c) = d
		return nil
	}
}

// readRedisUsers reads who may log in: a line for each, empty lines and those
// that begin with # left out.
func readRedisUsers(path string) ([]resp.User, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var users []resp.User
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		u := resp.User{Name: "default", Password: line}
		if name, rest, found := strings.Cut(line, ":"); found {
			u.Name, u.Password = name, rest
			u.Password, u.ReadOnly = strings.CutSuffix(rest, ":readonly")
		}
		if u.Name == "" || u.Password == "" {
			return nil, fmt.Errorf("%s:%d: want PASSWORD, NAME:PASSWORD or NAME:PASSWORD:readonly", path, i+1)
		}
		users = append(users, u)
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("%s names nobody: want lines PASSWORD, NAME:PASSWORD or NAME:PASSWORD:readonly", path)
	}
	return users, nil
}
