package replica

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// Config is the configuration of a replica. ID and Members are required.
type Config struct {
	// ID is this replica's number in its cluster, from 1. It is never given to
	// another replica.
	ID uint64
	// Cluster is the name that all replicas and clients share. Default: "weir".
	Cluster string
	// Members are the first replicas of the cluster, including this one, and the same
	// on all of them. A replica that joins, or that has run before, uses them only as addresses,
	// which take precedence over those that it has recorded: its log knows the members. A replica
	// that has done nothing yet takes them for the first members.
	Members []consensus.Member
	// Join makes a replica without a log wait until the cluster that Members lead
	// to adds it, instead of being one of its first members.
	Join bool

	// Dir is where the log and the snapshots are. It is made if there is none.
	// Required unless Memory is set.
	Dir string
	// Memory acknowledges without a disk: nothing is written at all, and a
	// replica that stops has lost everything, its votes included, so that it
	// must come back as a new member. Default: false, every acknowledgement has
	// been flushed.
	Memory bool
	// SegmentBytes is the size of the log's files. Default: that of package wal.
	SegmentBytes int64

	// Disk, if set, is where the log is instead of Dir: tests fail it.
	Disk wal.Disk
	// Clock, if set, tells the time instead of the machine's clocks: tests step it.
	Clock func() consensus.Clock

	// Listen is the address for replicas and native clients. Default: that of
	// this replica's entry in Members.
	Listen string
	// Redis is the address for Redis clients. Default: "", none.
	Redis string
	// Front is how Redis clients are treated; its Log is Log.
	Front resp.Config

	// Secret must be proven by replicas and native clients, see peer.Options.
	Secret []byte
	// TLS is demanded of replicas and native clients. Default: none.
	TLS *peer.Certificates
	// Insecure permits non-loopback addresses without either of them.
	Insecure bool

	// Switches select the protocol; see consensus.Preset. Preset is its name, for display.
	Switches consensus.Switches
	Preset   string
	// BatchDelay, if not 0, starts rounds at a fixed interval instead of whenever
	// the disk and the network are free. It exists for comparison.
	BatchDelay time.Duration
	// PeerDelay, if not 0, lets messages to other replicas gather for this long before
	// they are written, until SetPeerDelay changes it. It also exists for comparison.
	PeerDelay time.Duration
	// Election is how long a replica that hears nothing from a leader waits
	// before it stands for election: between this and twice this. Default:
	// 300 ms, at least 100 ms.
	Election time.Duration
	// DiskTimeout is how long a write to the log may take before the disk counts as hanging;
	// a leader then steps down. Default: 1 s, or twice
	// Election if that is more.
	DiskTimeout time.Duration
	// IndexReads makes strong reads ask a majority instead of trusting a lease.
	IndexReads bool
	// SnapshotBytes of log call for a new snapshot. Default: 64 MiB.
	SnapshotBytes int64
	// KeepBytes of log stay in memory for slow replicas after a snapshot.
	// Default: 16 MiB.
	KeepBytes int64
	// SessionIdle is after how long without a write a session is forgotten.
	// Default: 1 h.
	SessionIdle time.Duration
	// MaxValue is the largest value that Redis clients may write, in bytes.
	// Default: wire.MaxValue, which is also the most.
	MaxValue int
	// RequestTimeout is how long a request of a Redis client may take. Default:
	// 10 s.
	RequestTimeout time.Duration
	// CutOff is how long a replica may know no serving leader before it ends the
	// watches of its clients. Default: 30 s, or ten times Election if that is more.
	CutOff time.Duration
	// SnapshotRate bounds the network bandwidth for sending a snapshot, in bytes
	// per second. Default: 0, no bound.
	SnapshotRate int64
	// Latency is an artificial delay between replicas; see peer.Options.
	Latency func(from, to uint64) time.Duration

	// Knows is the newest format of the log that this replica knows, see
	// consensus.Format: tests use it to run an older version. Default: the newest one.
	Knows uint64

	// Version of weir, for display.
	Version string
	// Log receives messages for operators. Default: they are discarded.
	Log *slog.Logger
}

const (
	tickEvery      = 10 * time.Millisecond
	minElection    = 100 * time.Millisecond
	maxElection    = time.Minute
	leastCutOff    = 30 * time.Second
	maxBatchDelay  = 10 * time.Millisecond
	heartbeatShare = 6 // heartbeats in an election timeout
)

func (c Config) withDefaults() Config {
	c.Cluster = cmp.Or(c.Cluster, "weir")
	c.Election = cmp.Or(c.Election, 300*time.Millisecond)
	c.DiskTimeout = cmp.Or(c.DiskTimeout, max(leastDiskTimeout, 2*c.Election))
	c.CutOff = cmp.Or(c.CutOff, max(leastCutOff, 10*c.Election))
	c.MaxValue = cmp.Or(c.MaxValue, wire.MaxValue)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 10*time.Second)
	if c.Clock == nil {
		c.Clock = now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Listen == "" {
		for _, m := range c.Members {
			if m.ID == c.ID {
				c.Listen = m.Addr
			}
		}
	}
	return c
}

// Validate returns an error for the first invalid field, named like its
// flag.
func (c *Config) Validate() error {
	d := c.withDefaults()
	seen := map[uint64]bool{}
	for _, m := range d.Members {
		switch {
		case m.ID == 0 || consensus.Addr(m.ID) >= consensus.FirstClient:
			return fmt.Errorf("peers: replica id %d: want 1 to %d", m.ID, uint64(consensus.FirstClient)-1)
		case seen[m.ID]:
			return fmt.Errorf("peers: replica %d is named twice", m.ID)
		}
		seen[m.ID] = true
	}
	switch {
	case d.ID == 0:
		return errors.New("no id: give --id the number that this replica has in --peers")
	case len(d.Members) == 0:
		return errors.New("no peers: give --peers the replicas of the cluster, this one included, as 1=host:port,2=host:port,3=host:port")
	case !seen[d.ID] && (!d.Join || d.Listen == ""):
		return fmt.Errorf("replica %d is not among peers", d.ID)
	case len(d.Members) == 2 && !d.Join:
		return errors.New("peers: two replicas do not survive the loss of one; use 1, 3 or 5")
	case d.Dir == "" && d.Disk == nil && !d.Memory:
		return errors.New("no data directory: give --data, or --durability memory")
	case d.Dir != "" && d.Memory:
		return errors.New("durability memory writes nothing: give no data directory")
	case d.Election < minElection || d.Election > maxElection:
		return fmt.Errorf("election timeout %v: want %v to %v", d.Election, minElection, maxElection)
	case d.DiskTimeout < minElection:
		return fmt.Errorf("disk timeout %v: want at least %v", d.DiskTimeout, minElection)
	case d.BatchDelay < 0 || d.BatchDelay > maxBatchDelay:
		return fmt.Errorf("batch delay %v: want 0 to %v", d.BatchDelay, maxBatchDelay)
	case d.PeerDelay < 0 || d.PeerDelay > maxBatchDelay:
		return fmt.Errorf("peer delay %v: want 0 to %v", d.PeerDelay, maxBatchDelay)
	case d.MaxValue < 1 || d.MaxValue > wire.MaxValue:
		return fmt.Errorf("largest value %d: want 1 to %d bytes", d.MaxValue, wire.MaxValue)
	case d.SessionIdle != 0 && d.SessionIdle < time.Minute:
		return fmt.Errorf("session idle time %v: want at least 1m", d.SessionIdle)
	case d.SnapshotBytes < 0 || d.KeepBytes < 0 || d.SnapshotRate < 0 || d.RequestTimeout < 0:
		return errors.New("sizes, rates and times must not be negative")
	}
	return nil
}

// core is the part of the configuration for the core.
func (c *Config) core(seed uint64) consensus.Config {
	ticks := int(c.Election / tickEvery)
	out := consensus.Config{
		ID: c.ID, Members: c.Members, Knows: c.Knows, Switches: c.Switches, Seed: seed,
		TickNanos: int64(tickEvery), ElectionTicks: ticks, HeartbeatTicks: max(1, ticks/heartbeatShare),
		IndexReads: c.IndexReads, SnapshotBytes: c.SnapshotBytes, KeepBytes: c.KeepBytes, SessionIdle: c.SessionIdle,
	}
	out.Batch.Window = c.BatchDelay
	return out
}
