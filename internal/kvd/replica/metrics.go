package replica

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/resp"
)

// metric is one gauge or counter and where its value comes from.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *Status) float64
}

// peerMetric is the same for each other replica.
type peerMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(p *peer.PeerStats) float64
}

// collector renders the state at each scrape, so that serving touches no metric
// objects.
type collector struct {
	r          *Replica
	metrics    []metric
	peers      []peerMetric
	lag        *prometheus.Desc
	refused    *prometheus.Desc
	histograms []histogramMetric
	info       *prometheus.Desc
}

type histogramMetric struct {
	desc *prometheus.Desc
	of   *histogram
}

// Collector returns the replica's metrics. Their names begin with weir_kv_; the
// label replica is its id.
func (r *Replica) Collector() prometheus.Collector {
	c := &collector{r: r}
	labels := prometheus.Labels{"cluster": r.cfg.Cluster, "replica": strconv.FormatUint(r.cfg.ID, 10)}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_kv_"+name, help, variable, labels)
	}
	add := func(kind prometheus.ValueType) func(name, help string, value func(*Status) float64) {
		return func(name, help string, value func(*Status) float64) {
			c.metrics = append(c.metrics, metric{desc(name, help), kind, value})
		}
	}
	r.addLevels(add(prometheus.GaugeValue))
	r.addCounts(add(prometheus.CounterValue))
	r.addDisk(add(prometheus.GaugeValue), add(prometheus.CounterValue))
	addPeer := func(kind prometheus.ValueType, name, help string, value func(*peer.PeerStats) float64) {
		c.peers = append(c.peers, peerMetric{desc("peer_"+name, help, "peer"), kind, value})
	}
	addPeers(addPeer)
	c.lag = desc("peer_lag_entries", "Entries of the leader's log that a replica is not known to have; on the leader only.", "peer")
	c.refused = desc("refused_connections_total", "Handshakes that this replica refused, by reason.", "reason")
	c.info = desc("info", "Always 1; the labels say how the replica is set up.", "preset", "durability")
	c.histograms = []histogramMetric{
		{desc("fsync_seconds", "How long a flush of the log took."), &r.disk.stats.seconds},
		{desc("fsync_records", "Records that one flush made durable."), &r.disk.stats.rounds},
		{desc("round_operations", "Operations that one round of the log packed, as the mean of each 10 ms; on the leader."), &r.stats.rounds},
		{desc("turn_messages", "Messages that one turn of the core took."), &r.stats.taken},
	}
	return c
}

type adder = func(name, help string, value func(*Status) float64)

// addLevels lists what the replica knows now.
func (r *Replica) addLevels(gauge adder) {
	gauge("term", "Term of the newest leader that is known.", func(s *Status) float64 { return float64(s.Term) })
	gauge("view", "Newest view that this replica votes in.", func(s *Status) float64 { return float64(s.View) })
	gauge("is_leader", "1 on the leader.", func(s *Status) float64 { return truth(s.Leader == s.ID) })
	gauge("ready", "1 while the replica knows an open leader and has applied what is committed.", func(s *Status) float64 { return truth(s.Ready() == nil) })
	gauge("format", "Format of the log and its commands that all members have agreed on.", func(s *Status) float64 { return float64(s.Format) })
	gauge("doubt", "1 while this leader serves no requests, because states differ and no majority says which is right.", func(s *Status) float64 { return truth(s.Doubt != "") })
	gauge("disk_hangs", "1 while the disk has not ended a write of the log for --disk-timeout.", func(s *Status) float64 { return truth(s.Hangs) })
	gauge("members", "Members of the cluster, learners included.", func(s *Status) float64 { return float64(len(s.Members)) })
	gauge("commit_index", "Newest entry that is known to be committed.", func(s *Status) float64 { return float64(s.Commit) })
	gauge("applied_index", "Newest entry that was applied here.", func(s *Status) float64 { return float64(s.Applied) })
	gauge("last_index", "Newest entry of this replica's log.", func(s *Status) float64 { return float64(s.Last) })
	gauge("durable_index", "Newest entry on this replica's disk.", func(s *Status) float64 { return float64(s.Durable) })
	gauge("snapshot_index", "Entry that the newest snapshot ends at.", func(s *Status) float64 { return float64(s.Snapshot) })
	gauge("revision", "Operations that were applied.", func(s *Status) float64 { return float64(s.Revision) })
	gauge("log_memory_bytes", "Entries that are kept in memory.", func(s *Status) float64 { return float64(s.LogBytes) })
	gauge("keys", "Keys in the store.", func(s *Status) float64 { return float64(s.Keys) })
	gauge("bytes", "Bytes of keys and values.", func(s *Status) float64 { return float64(s.Bytes) })
	gauge("sessions", "Sessions that have not expired.", func(s *Status) float64 { return float64(s.Sessions) })
	gauge("witness_records", "Operations in the witness pool.", func(s *Status) float64 { return float64(s.Pool) })
	gauge("weak_pending", "Weak writes that were acknowledged here and are not committed yet.", func(s *Status) float64 { return float64(s.Intents) })
	gauge("waiting_operations", "Operations that wait for a round; on the leader.", func(s *Status) float64 { return float64(s.Waiting) })
	gauge("rounds_in_flight", "Rounds that are not committed yet; on the leader.", func(s *Status) float64 { return float64(s.InFlight) })
	gauge("round_lanes", "Rounds that may be in flight at a time; on the leader.", func(s *Status) float64 { return float64(s.Lanes) })
	gauge("redis_clients", "Connections of Redis clients.", func(*Status) float64 { return float64(r.gateway.conns()) })
	gauge("redis_unread_bytes", "Answers that Redis clients have not read, in bytes; small ones do not count.", r.redisCount(func(c *resp.Counts) uint64 { return uint64(c.Unread) }))
	gauge("native_clients", "Connections of native clients.", func(*Status) float64 { return float64(r.peers.transport.Stats().Clients.Open) })
	gauge("peer_delay_seconds", "How long messages to other replicas gather before they are written: --peer-delay, or what was set since.", func(*Status) float64 { return r.peers.transport.Delay().Seconds() })
	gauge("watches", "Watches of native clients.", func(*Status) float64 { return float64(r.feed.watching.Load()) })
}

// addCounts lists what the replica has done since it was started.
func (r *Replica) addCounts(count adder) {
	count("operations_total", "Operations put into the log by this replica as leader.", func(s *Status) float64 { return float64(s.Counters.Operations) })
	count("diverged_total", "Times that a replica's state was found to differ from a majority's, which stops it; on the leader.", func(s *Status) float64 { return float64(s.Counters.Diverged) })
	count("rounds_total", "Entries of the log that this leader packed operations into.", func(s *Status) float64 { return float64(s.Counters.Rounds) })
	count("elections_total", "Elections that this replica stood for.", func(s *Status) float64 { return float64(s.Counters.Elections) })
	count("leader_changes_total", "Changes of the leader that this replica has seen.", func(s *Status) float64 { return float64(s.Counters.LeaderChanges) })
	count("votes_yes_total", "Witness votes for an operation.", func(s *Status) float64 { return float64(s.Counters.VotesYes) })
	count("votes_no_total", "Witness votes against an operation, which then waits for its commit.", func(s *Status) float64 { return float64(s.Counters.VotesNo) })
	count("speculative_results_total", "Results told by the leader before the commit.", func(s *Status) float64 { return float64(s.Counters.SpecYes) })
	count("speculative_declined_total", "Operations whose result had to wait for the commit.", func(s *Status) float64 { return float64(s.Counters.SpecNo) })
	count("recovered_total", "Operations found in witness pools by this replica as a new leader.", func(s *Status) float64 { return float64(s.Counters.Recovered) })
	count("sessions_expired_total", "Sessions that were given up.", func(s *Status) float64 { return float64(s.Counters.Expired) })
	count("weak_lost_total", "Weak writes acknowledged here whose session expired before they were committed.", func(s *Status) float64 { return float64(s.Counters.IntentsLost) })
	count("malformed_total", "Messages that could not be decoded or were out of place.", func(s *Status) float64 { return float64(s.Counters.Malformed) })
	count("snapshots_saved_total", "Snapshots written.", func(*Status) float64 { return float64(r.snapshots.stats.saved.Load()) })
	count("snapshots_failed_total", "Snapshots that could not be written.", func(*Status) float64 { return float64(r.snapshots.stats.failed.Load()) })
	count("snapshots_sent_total", "Snapshots sent to other replicas.", func(*Status) float64 { return float64(r.snapshots.stats.shipped.Load()) })
	count("snapshots_unsent_total", "Snapshots that could not be sent.", func(*Status) float64 { return float64(r.snapshots.stats.unshipped.Load()) })
	count("snapshots_received_total", "Snapshots received from a leader.", func(*Status) float64 { return float64(r.snapshots.stats.received.Load()) })
	count("redis_connections_total", "Connections of Redis clients that were accepted.", r.redisCount(func(c *resp.Counts) uint64 { return c.Accepted }))
	count("redis_rejected_total", "Connections of Redis clients that were refused because there were too many.", r.redisCount(func(c *resp.Counts) uint64 { return c.Rejected }))
	count("redis_commands_total", "Commands of Redis clients.", r.redisCount(func(c *resp.Counts) uint64 { return c.Commands }))
	count("redis_writes_total", "Writes of replies to Redis clients, each a system call.", r.redisCount(func(c *resp.Counts) uint64 { return c.Writes }))
	clients := func(of func(*peer.ClientStats) uint64) func(*Status) float64 {
		return func(*Status) float64 {
			s := r.peers.transport.Stats()
			return float64(of(&s.Clients))
		}
	}
	count("client_sent_messages_total", "Messages sent to native clients.", clients(func(s *peer.ClientStats) uint64 { return s.Sent.Messages }))
	count("client_sent_writes_total", "System calls that sent messages to native clients.", clients(func(s *peer.ClientStats) uint64 { return s.Sent.Calls }))
	count("turns_total", "Turns of the core.", func(*Status) float64 { return float64(r.stats.turns.Load()) })
	count("watch_events_total", "Events sent to native clients.", func(*Status) float64 { return float64(r.feed.stats.events.Load()) })
	count("watch_changes_total", "Changes in the events sent to native clients.", func(*Status) float64 { return float64(r.feed.stats.changes.Load()) })
	count("watches_missed_total", "Times that a watch could not keep up and was told to read again.", func(*Status) float64 { return float64(r.feed.stats.missed.Load()) })
}

// redisCount is a figure of the Redis front, 0 without one.
func (r *Replica) redisCount(of func(*resp.Counts) uint64) func(*Status) float64 {
	return func(*Status) float64 {
		if r.front == nil {
			return 0
		}
		c := r.front.Counts()
		return float64(of(&c))
	}
}

// addDisk lists what the disk goroutine has done.
func (r *Replica) addDisk(gauge, count adder) {
	d := &r.disk.stats
	count("log_bytes_total", "Bytes written to the log.", func(*Status) float64 { return float64(d.bytes.Load()) })
	count("log_records_total", "Records written to the log.", func(*Status) float64 { return float64(d.records.Load()) })
	count("log_segments_begun_total", "Segments of the log that were begun.", func(*Status) float64 { return float64(d.rolls.Load()) })
	count("log_segments_failed_total", "Segments that could not be begun, for lack of space.", func(*Status) float64 { return float64(d.failedRolls.Load()) })
	gauge("log_segments", "Segments of the log that exist.", func(*Status) float64 { return float64(d.segments.Load()) })
	count("log_flushes_aside_total", "Flushes by a thread of the kernel (io_uring), while the replica did other work.", func(*Status) float64 { return float64(d.aside.Load()) })
}

func addPeers(add func(kind prometheus.ValueType, name, help string, value func(*peer.PeerStats) float64)) {
	gauge, count := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "up", "1 while the replica is connected.", func(p *peer.PeerStats) float64 { return truth(p.Up) })
	add(gauge, "rtt_seconds", "Smoothed round trip.", func(p *peer.PeerStats) float64 { return p.RTT.Smoothed.Seconds() })
	add(gauge, "queued_bytes", "Bytes that wait to be written.", func(p *peer.PeerStats) float64 { return float64(p.Queued) })
	add(count, "sent_bytes_total", "Bytes sent.", func(p *peer.PeerStats) float64 { return float64(p.Sent.Bytes) })
	add(count, "sent_messages_total", "Messages sent.", func(p *peer.PeerStats) float64 { return float64(p.Sent.Messages) })
	add(count, "sent_writes_total", "System calls that sent messages.", func(p *peer.PeerStats) float64 { return float64(p.Sent.Calls) })
	add(count, "received_bytes_total", "Bytes received.", func(p *peer.PeerStats) float64 { return float64(p.Received.Bytes) })
	add(count, "received_messages_total", "Messages received.", func(p *peer.PeerStats) float64 { return float64(p.Received.Messages) })
	add(count, "dropped_messages_total", "Messages that were not taken: no connection, or a full queue.", func(p *peer.PeerStats) float64 { return float64(p.Dropped) })
	add(count, "connects_total", "Connections made.", func(p *peer.PeerStats) float64 { return float64(p.Connects) })
	add(count, "connect_failures_total", "Attempts to connect that came to nothing.", func(p *peer.PeerStats) float64 { return float64(p.Failures) })
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
	for _, m := range c.peers {
		ch <- m.desc
	}
	for _, h := range c.histograms {
		ch <- h.desc
	}
	ch <- c.lag
	ch <- c.refused
	ch <- c.info
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.r.Status()
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s))
	}
	links := c.r.peers.transport.Stats()
	for i := range links.Peers {
		p := &links.Peers[i]
		for _, m := range c.peers {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(p), strconv.FormatUint(p.ID, 10))
		}
	}
	for i := range s.Peers {
		if p := &s.Peers[i]; p.ID != s.ID {
			ch <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, float64(s.Last-min(p.Match, s.Last)), strconv.FormatUint(p.ID, 10))
		}
	}
	for code, n := range links.Refused {
		ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(n), code.String())
	}
	for _, h := range c.histograms {
		ch <- h.of.metric(h.desc)
	}
	ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, s.Preset, s.Durability)
}
