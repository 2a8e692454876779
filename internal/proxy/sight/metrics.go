package sight

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// A Source is one protocol's side of a proxy.
type Source interface {
	// Snapshot returns the present state.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// collector renders snapshots as Prometheus metrics at each scrape, so that
// the data path touches no metric objects.
type collector struct {
	sources []Source

	clients, backends, poolSize, waiting, pinned                                                            *prometheus.Desc
	statements, errors, waits, waitSeconds                                                                  *prometheus.Desc
	timeouts, pins, logins, dials, reruns, replays                                                          *prometheus.Desc
	strays, stalls, moved, preempted                                                                        *prometheus.Desc
	latency, wait, server, login                                                                            *prometheus.Desc
	groups, members, fallbacks, lanes                                                                       *prometheus.Desc
	shapeRuns, shapeErrors, shapeCost                                                                       *prometheus.Desc
	shapeRows, shapeSeconds, shapeWait                                                                      *prometheus.Desc
	paused, disabled, limited                                                                               *prometheus.Desc
	hostUp, hostCurrent, hostLag                                                                            *prometheus.Desc
	slow, spans, forwards                                                                                   *prometheus.Desc
	cacheHits, cacheStale, cacheMisses, cacheShared, cacheSkipped, cacheEntries, cacheBytes, cacheEvictions *prometheus.Desc

	loopBusy, loopTurns, loopSyscalls, bytes, badHints *prometheus.Desc
	checks, handed                                     *prometheus.Desc
	listeners, hubs, channels, notified, unheard       *prometheus.Desc
}

// Collector returns the Prometheus metrics of a proxy. Their names begin with
// weir_proxy_, and the label engine tells the sources apart. Statement shapes are
// bounded to the busiest hundred of each.
func Collector(sources ...Source) prometheus.Collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_proxy_"+name, help, append([]string{"engine"}, labels...), nil)
	}
	pool := []string{"database", "user"}
	with := func(more ...string) []string { return append(append([]string(nil), pool...), more...) }
	return &collector{
		sources:        sources,
		clients:        d("clients", "Client sessions by state.", with("state")...),
		backends:       d("backends", "Server connections by mode.", with("mode")...),
		poolSize:       d("pool_size", "Most server connections that the pool may use at present.", pool...),
		waiting:        d("waiting_statements", "Statements that wait for a backend.", pool...),
		pinned:         d("pinned_clients", "Clients that keep their backend because of session state.", pool...),
		statements:     d("statements_total", "Statements answered, by path.", with("path")...),
		errors:         d("errors_total", "Statements that the server answered with an error.", pool...),
		waits:          d("waits_total", "Times that something waited for a backend.", pool...),
		waitSeconds:    d("wait_seconds_total", "Time spent waiting for a backend.", pool...),
		timeouts:       d("queue_timeouts_total", "Statements refused because no backend became free in time.", pool...),
		limited:        d("limited_total", "What a limit has refused or ended, by limit.", with("limit")...),
		pins:           d("pins_total", "Sessions pinned to a backend, by cause.", with("cause")...),
		logins:         d("logins_total", "Client logins by outcome.", "outcome"),
		checks:         d("login_checks_total", "Logins that were let in, by the method of their proof and by what they cost the server: pooled (no connection), dialed (one that weir opened to ask), relayed (one that the server checked them on).", "method", "way"),
		dials:          d("backend_connections_total", "Server connections by outcome.", with("outcome")...),
		strays:         d("strays_total", "Server connections that were closed because they held session state that should not be there.", pool...),
		stalls:         d("stalled_reads_total", "Shared reads that held up those behind them, by a lock or because they are slow.", pool...),
		moved:          d("moved_reads_total", "Shared reads behind a stalled one that were sent again elsewhere.", pool...),
		preempted:      d("preempted_reads_total", "Reads that were ended so that others could run, and run again.", pool...),
		reruns:         d("reruns_total", "Statements run again after an error of weir's own making.", pool...),
		replays:        d("settings_replays_total", "Times that session settings were replayed on a backend.", pool...),
		latency:        d("latency_seconds", "From the complete message of a client to its answer.", pool...),
		wait:           d("wait_seconds", "The part of the latency until the server began with the statement.", pool...),
		server:         d("server_seconds", "The part of the latency from when the server began with the statement.", pool...),
		login:          d("login_seconds", "From the accepted connection of a client to the end of its login.", "database"),
		groups:         d("lane_groups_total", "Groups sent by write lanes.", with("kind", "statement")...),
		members:        d("lane_statements_total", "Statements in the groups that write lanes sent.", with("kind", "statement")...),
		fallbacks:      d("lane_fallbacks_total", "Groups that failed and were run again apart.", with("kind", "statement")...),
		lanes:          d("lane_concurrency", "Groups that the controller allows in flight now.", with("kind", "statement")...),
		shapeRuns:      d("statement_runs_total", "Executions by statement shape, busiest hundred.", "verb", "statement"),
		shapeErrors:    d("statement_errors_total", "Errors by statement shape.", "verb", "statement"),
		shapeCost:      d("statement_cost_seconds", "Learned cost of a statement shape on the server.", "verb", "statement"),
		shapeRows:      d("statement_rows_total", "Rows returned or changed, by statement shape.", "verb", "statement"),
		shapeSeconds:   d("statement_seconds_total", "Time from the complete message to the answer, by statement shape.", "verb", "statement"),
		shapeWait:      d("statement_wait_seconds_total", "Time until the server began, by statement shape.", "verb", "statement"),
		paused:         d("database_paused", "1 if the console has paused the database.", "database"),
		disabled:       d("database_disabled", "1 if the console has the database refuse logins.", "database"),
		hostUp:         d("host_up", "1 if the host answered when it was last asked, by the role that it has.", "host", "address", "role"),
		hostLag:        d("host_lag_seconds", "How far a standby is behind the primary among the hosts.", "host", "address"),
		hostCurrent:    d("host_current", "1 if new connections go to the host.", "host", "address"),
		loopBusy:       d("loop_busy_seconds_total", "Time in which an event loop did not sleep."),
		loopTurns:      d("loop_turns_total", "Turns of the event loops."),
		loopSyscalls:   d("loop_syscalls_total", "System calls of the event loops on sockets.", "call"),
		bytes:          d("bytes_total", "Bytes over all sockets.", "direction"),
		slow:           d("slow_statements_total", "Statements slower than --slow-log: logged, or dropped because the log could not follow.", "outcome"),
		spans:          d("spans_total", "Spans of traced statements: sent, dropped because too many waited, or failed to be delivered.", "outcome"),
		forwards:       d("peer_requests_total", "Cancel and KILL of clients of other weirs: sent there, refused because too many were under way, or failed.", "outcome"),
		handed:         d("sessions_handed_over_total", "Sessions that the process before has handed over: taken, or refused and so ended.", "outcome"),
		listeners:      d("listeners", "Clients that listen and rest: one connection listens for all of a pool.", pool...),
		hubs:           d("listen_connections", "Server connections that listen for clients that rest.", pool...),
		channels:       d("listen_channels", "Channels on which weir listens for clients that rest.", pool...),
		notified:       d("notifications_total", "Notifications that the connections that listen for clients received, and that clients were given.", with("direction")...),
		unheard:        d("listeners_ended_total", "Clients that were disconnected because the connection that listened for them was lost, or because they did not read their notifications.", pool...),
		cacheHits:      d("cache_hits_total", "Reads answered by the cache with what was no older than their ttl.", "database"),
		cacheStale:     d("cache_stale_total", "Reads answered by the cache with what was older, up to twice their ttl, while it was fetched again.", "database"),
		cacheMisses:    d("cache_misses_total", "Reads with a ttl that were fetched from the server.", "database"),
		cacheShared:    d("cache_shared_total", "Reads with a ttl that waited for what another client fetched.", "database"),
		cacheSkipped:   d("cache_skipped_total", "Statements with a ttl that are not cached, by reason.", "database", "reason"),
		cacheEntries:   d("cache_entries", "Answers in the cache, with those that were purged and are not freed yet.", "database"),
		cacheBytes:     d("cache_bytes", "Memory that the answers in the cache take, with their keys.", "database"),
		cacheEvictions: d("cache_evictions_total", "Answers that the cache gave up for others.", "database"),
		badHints:       d("bad_hints_total", "Hints that could not be used."),
	}
}

// Describe sends nothing: the metrics depend on the pools that exist.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, source := range c.sources {
		snap, err := source.Snapshot(ctx)
		if err != nil {
			ch <- prometheus.NewInvalidMetric(c.clients, err)
			return
		}
		c.collect(ch, &snap)
	}
}

func (c *collector) collect(ch chan<- prometheus.Metric, snap *Snapshot) {
	emit := func(kind prometheus.ValueType) emitMetric {
		return func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{snap.Engine}, labels...)...)
		}
	}
	gauge, count := emit(prometheus.GaugeValue), emit(prometheus.CounterValue)
	count(c.logins, float64(snap.Logins), "accepted")
	count(c.logins, float64(snap.LoginsFailed), "failed")
	count(c.logins, float64(snap.LoginsRefused), "refused")
	for _, ck := range snap.Checks {
		count(c.checks, float64(ck.Count), ck.Method, ck.Way)
	}
	count(c.badHints, float64(snap.BadHints))
	count(c.slow, float64(snap.SlowLogged), "logged")
	count(c.slow, float64(snap.SlowDropped), "dropped")
	count(c.forwards, float64(snap.Forwards.Sent), "sent")
	count(c.forwards, float64(snap.Forwards.Refused), "refused")
	count(c.forwards, float64(snap.Forwards.Failed), "failed")
	count(c.handed, float64(snap.Taken), "taken")
	count(c.handed, float64(snap.TakenNot), "refused")
	count(c.spans, float64(snap.Spans.Sent), "sent")
	count(c.spans, float64(snap.Spans.Dropped), "dropped")
	count(c.spans, float64(snap.Spans.Failed), "failed")
	for _, d := range snap.Databases {
		gauge(c.paused, float64(bit(d.Paused)), d.Name)
		gauge(c.disabled, float64(bit(d.Disabled)), d.Name)
	}
	for _, h := range snap.Hosts {
		gauge(c.hostUp, float64(bit(h.Err == "")), h.Host, h.Address, h.Role)
		if h.LagKnown {
			gauge(c.hostLag, h.Lag.Seconds(), h.Host, h.Address)
		}
		gauge(c.hostCurrent, float64(bit(h.Current)), h.Host, h.Address)
	}
	for i := range snap.Pools {
		p := &snap.Pools[i]
		db, user := p.Database, p.User
		gauge(c.clients, float64(p.Active), db, user, "active")
		gauge(c.clients, float64(p.Clients-p.Active), db, user, "idle")
		gauge(c.pinned, float64(p.Pinned), db, user)
		gauge(c.waiting, float64(p.Waiting), db, user)
		gauge(c.backends, float64(p.Free), db, user, "free")
		gauge(c.backends, float64(p.Shared), db, user, "shared")
		gauge(c.backends, float64(p.Owned), db, user, "owned")
		gauge(c.backends, float64(p.Laned), db, user, "laned")
		gauge(c.poolSize, float64(p.Size), db, user)
		count(c.statements, float64(p.Reads), db, user, "shared")
		count(c.statements, float64(p.Grouped), db, user, "grouped")
		count(c.statements, float64(p.Cached), db, user, "cached")
		count(c.statements, float64(p.Statements-min(p.Statements, p.Reads+p.Grouped+p.Cached)), db, user, "alone")
		count(c.errors, float64(p.Errors), db, user)
		count(c.waits, float64(p.Waits), db, user)
		count(c.waitSeconds, p.Waited.Seconds(), db, user)
		count(c.timeouts, float64(p.Timeouts), db, user)
		count(c.dials, float64(p.Opened), db, user, "opened")
		count(c.dials, float64(p.Closed), db, user, "closed")
		count(c.dials, float64(p.DialErrors), db, user, "failed")
		count(c.reruns, float64(p.Reruns), db, user)
		count(c.strays, float64(p.Strays), db, user)
		count(c.stalls, float64(p.Stalls), db, user)
		count(c.moved, float64(p.Moved), db, user)
		count(c.preempted, float64(p.Preempted), db, user)
		count(c.replays, float64(p.Replays), db, user)
		if p.Channels > 0 || p.Hubs > 0 || p.Heard > 0 {
			gauge(c.listeners, float64(p.Listeners), db, user)
			gauge(c.hubs, float64(p.Hubs), db, user)
			gauge(c.channels, float64(p.Channels), db, user)
			count(c.notified, float64(p.Heard), db, user, "received")
			count(c.notified, float64(p.Notified), db, user, "delivered")
			count(c.unheard, float64(p.Unheard), db, user)
		}
		for cause, n := range p.Pins {
			count(c.pins, float64(n), db, user, cause)
		}
		for limit, n := range p.Limited {
			count(c.limited, float64(n), db, user, limit)
		}
		ch <- newHistogram(c.latency, p.Latency, snap.Engine, db, user)
		ch <- newHistogram(c.wait, p.Wait, snap.Engine, db, user)
		ch <- newHistogram(c.server, p.Server, snap.Engine, db, user)
	}
	c.collectCache(snap, gauge, count)
	for db, h := range snap.LoginTimes {
		ch <- newHistogram(c.login, h, snap.Engine, db)
	}
	c.collectLanes(snap, gauge, count)
	c.collectLoops(snap, gauge, count)
}

func (c *collector) collectCache(snap *Snapshot, gauge, count emitMetric) {
	for i := range snap.Caches {
		s := &snap.Caches[i]
		count(c.cacheHits, float64(s.Hits), s.Database)
		count(c.cacheStale, float64(s.Stale), s.Database)
		count(c.cacheMisses, float64(s.Misses), s.Database)
		count(c.cacheShared, float64(s.Shared), s.Database)
		count(c.cacheEvictions, float64(s.Evicted), s.Database)
		gauge(c.cacheEntries, float64(s.Entries), s.Database)
		gauge(c.cacheBytes, float64(s.Bytes), s.Database)
		for reason, n := range s.Skipped {
			count(c.cacheSkipped, float64(n), s.Database, reason)
		}
	}
}

type emitMetric func(d *prometheus.Desc, v float64, labels ...string)

// collectLanes adds up lanes of the same statement, which differ in settings or
// window only.
func (c *collector) collectLanes(snap *Snapshot, gauge, count emitMetric) {
	type key struct{ db, user, kind, text string }
	sum := make(map[key]*LaneStatus)
	for i := range snap.Lanes {
		l := &snap.Lanes[i]
		k := key{l.Database, l.User, l.Kind, l.Text}
		if s := sum[k]; s != nil {
			s.Groups += l.Groups
			s.Members += l.Members
			s.Fallbacks += l.Fallbacks
			s.Lanes += l.Lanes
		} else if len(sum) < maxReportedShapes {
			sum[k] = &LaneStatus{Groups: l.Groups, Members: l.Members, Fallbacks: l.Fallbacks, Lanes: l.Lanes}
		}
	}
	for k, l := range sum {
		count(c.groups, float64(l.Groups), k.db, k.user, k.kind, k.text)
		count(c.members, float64(l.Members), k.db, k.user, k.kind, k.text)
		count(c.fallbacks, float64(l.Fallbacks), k.db, k.user, k.kind, k.text)
		gauge(c.lanes, float64(l.Lanes), k.db, k.user, k.kind, k.text)
	}
}

func (c *collector) collectLoops(snap *Snapshot, gauge, count emitMetric) {
	type key struct{ verb, text string }
	shapes := make(map[key]*ShapeStatus)
	for i := range snap.Shapes[:min(len(snap.Shapes), maxReportedShapes)] {
		sh := snap.Shapes[i]
		k := key{sh.Verb, sh.Text}
		if have := shapes[k]; have != nil {
			have.add(&sh)
			continue
		}
		shapes[k] = &sh
	}
	for k, s := range shapes {
		count(c.shapeRuns, float64(s.Runs), k.verb, k.text)
		count(c.shapeErrors, float64(s.Errors), k.verb, k.text)
		count(c.shapeRows, float64(s.Rows), k.verb, k.text)
		count(c.shapeSeconds, s.Total.Seconds(), k.verb, k.text)
		count(c.shapeWait, s.Waited().Seconds(), k.verb, k.text)
		gauge(c.shapeCost, s.Cost.Seconds(), k.verb, k.text)
	}
	var all netloop.Stats
	for _, l := range snap.Loops {
		all.Busy += l.Busy
		all.Turns += l.Turns
		all.Reads += l.Reads
		all.Writes += l.Writes
		all.BytesIn += l.BytesIn
		all.BytesOut += l.BytesOut
	}
	count(c.loopBusy, all.Busy.Seconds())
	count(c.loopTurns, float64(all.Turns))
	count(c.loopSyscalls, float64(all.Reads), "read")
	count(c.loopSyscalls, float64(all.Writes), "write")
	count(c.bytes, float64(all.BytesIn), "in")
	count(c.bytes, float64(all.BytesOut), "out")
}
