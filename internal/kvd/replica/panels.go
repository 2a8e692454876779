package replica

import (
	"context"
	"fmt"
	"iter"
	"math"
	"strconv"
	"time"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/kvd/resp"
)

// page describes what the live page records and shows.
func page() live.Page {
	series := live.Keys([]string{"fsync_p95", "fsync_p99", "lag", "behind", "waiting"},
		"term", "leader", "commits", "operations", "commands", "rounds", "round_size", "fsyncs", "fsync_p50", "fsync_records", "log_bytes",
		"keys", "bytes", "sessions", "redis_clients", "native_clients", "watches", "in_flight", "lanes", "rtt", "peers_up",
		"elections", "leader_changes", "votes_yes", "votes_no", "spec_yes", "spec_no", "dropped", "weak_pending", "log_memory",
	)
	return live.Page{
		Title: "weir kv", Series: series, Links: []string{"status.json"},
		Tiles: []live.Tile{
			{Label: "Commits", Key: "commits", Format: live.Count, Per: "/s", Note: "entries of the log"},
			{Label: "Operations", Key: "operations", Format: live.Count, Per: "/s", Parts: []live.Part{{Key: "round_size", Format: live.Count, Label: "in a round"}}},
			{Label: "Flush p50", Key: "fsync_p50", Format: live.Seconds, Parts: []live.Part{{Key: "fsyncs", Format: live.Count, Label: "flushes/s"}}},
			{Label: "Flush p99", Key: "fsync_p99", Format: live.Seconds, Note: "of each second", Alarm: 1},
			{Label: "Term", Key: "term", Format: live.Count, Parts: []live.Part{{Key: "leader", Format: live.Count, Label: "leads"}}},
			{Label: "Behind", Key: "behind", Format: live.Count, Note: "committed, not applied here", Alarm: readyLag},
			{Label: "Slowest replica", Key: "lag", Format: live.Count, Note: "entries behind; on the leader"},
			{Label: "Clients", Key: "redis_clients", Format: live.Count, Parts: []live.Part{{Key: "native_clients", Format: live.Count, Label: "native"}, {Key: "sessions", Format: live.Count, Label: "sessions"}}},
			{Label: "Keys", Key: "keys", Format: live.Count, Parts: []live.Part{{Key: "bytes", Format: live.Bytes, Label: "in all"}}},
		},
		Charts: []live.Chart{
			{Title: "Rates", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("commits", "commits", 1), live.Draw("operations", "operations led", 2), live.Draw("commands", "Redis commands here", 3)}},
			{Title: "Flushes of the log", Unit: "up to", Format: live.Seconds, Decades: true, Lines: []live.Line{live.Draw("fsync_p50", "p50", 1), live.Draw("fsync_p95", "p95", 4), live.Draw("fsync_p99", "p99", 2)}},
			{Title: "What a flush carries", Unit: "mean", Format: live.Count, Lines: []live.Line{live.Draw("fsync_records", "records in a flush", 3), live.Draw("round_size", "operations in a round", 2)}},
			{Title: "Term and elections", Format: live.Count, Lines: []live.Line{live.Draw("term", "term", 1), live.Draw("leader", "replica that leads", 3), live.Draw("elections", "elections stood for/s", 2)}},
			{Title: "Lag", Unit: "entries", Format: live.Count, Lines: []live.Line{live.Draw("lag", "slowest replica", 2), live.Draw("behind", "not applied here", 1)}},
			{Title: "Rounds", Format: live.Count, Lines: []live.Line{live.Draw("waiting", "operations waiting", 4), live.Draw("in_flight", "rounds in flight", 2), live.Draw("lanes", "allowed", 5)}},
			{Title: "Answers before the commit", Unit: "per second", Format: live.Count, Lines: []live.Line{live.Draw("votes_yes", "witness yes", 3), live.Draw("votes_no", "witness no", 2), live.Draw("spec_yes", "results told", 1), live.Draw("spec_no", "had to wait", 4)}},
			{Title: "Other replicas", Format: live.Seconds, Lines: []live.Line{live.Draw("rtt", "slowest round trip", 1)}},
			{Title: "Clients", Format: live.Count, Lines: []live.Line{live.Draw("redis_clients", "Redis", 1), live.Draw("native_clients", "native", 3), live.Draw("sessions", "sessions", 5), live.Draw("watches", "watches", 4)}},
			{Title: "Log", Unit: "bytes per second, and in memory", Format: live.Bytes, Lines: []live.Line{live.Draw("log_bytes", "written", 2), live.Draw("log_memory", "entries in memory", 5)}},
		},
	}
}

// panels shows a replica on the live page.
type panels struct{ r *Replica }

// Sample implements live.Source.
func (p panels) Sample(_ context.Context, s *live.Sample) error {
	st := p.r.Status()
	c := &st.Counters
	d := &p.r.disk.stats
	s.Level("term", float64(st.Term))
	s.Level("leader", float64(st.Leader))
	s.Rate("commits", float64(st.Commit))
	s.Rate("operations", float64(c.Operations))
	s.Rate("commands", p.r.redisCount(func(c *resp.Counts) uint64 { return c.Commands })(st))
	s.Rate("rounds", float64(c.Rounds))
	s.Mean("round_size", float64(c.Operations), float64(c.Rounds))
	s.Rate("fsyncs", float64(d.syncs.Load()))
	s.Quantiles(d.seconds.buckets(), live.Quantile{Key: "fsync_p50", Of: 0.5}, live.Quantile{Key: "fsync_p95", Of: 0.95}, live.Quantile{Key: "fsync_p99", Of: 0.99})
	s.Mean("fsync_records", float64(d.records.Load()), float64(d.syncs.Load()))
	s.Rate("log_bytes", float64(d.bytes.Load()))
	s.Level("log_memory", float64(st.LogBytes))
	s.Level("keys", float64(st.Keys))
	s.Level("bytes", float64(st.Bytes))
	s.Level("sessions", float64(st.Sessions))
	s.Level("redis_clients", float64(p.r.gateway.conns()))
	s.Level("watches", float64(p.r.feed.watching.Load()))
	s.Level("waiting", float64(st.Waiting))
	s.Level("in_flight", float64(st.InFlight))
	s.Level("lanes", float64(st.Lanes))
	s.Level("weak_pending", float64(st.Intents))
	s.Level("behind", float64(st.Commit-min(st.Applied, st.Commit)))
	s.Rate("elections", float64(c.Elections))
	s.Rate("leader_changes", float64(c.LeaderChanges))
	s.Rate("votes_yes", float64(c.VotesYes))
	s.Rate("votes_no", float64(c.VotesNo))
	s.Rate("spec_yes", float64(c.SpecYes))
	s.Rate("spec_no", float64(c.SpecNo))
	for i := range st.Peers { // on the leader
		if m := &st.Peers[i]; m.ID != st.ID {
			s.Highest("lag", float64(st.Last-min(m.Match, st.Last)))
		}
	}
	links := p.r.peers.transport.Stats()
	s.Level("native_clients", float64(links.Clients.Open))
	up, dropped := 0, uint64(0)
	for i := range links.Peers {
		l := &links.Peers[i]
		dropped += uint64(l.Dropped)
		if l.Up {
			up++
			s.Highest("rtt", l.RTT.Smoothed.Seconds())
		}
	}
	s.Level("peers_up", float64(up))
	s.Rate("dropped", float64(dropped))
	return nil
}

// buckets are the upper ends of the histogram's buckets, and their counts.
func (h *histogram) buckets() iter.Seq2[float64, uint64] {
	return func(yield func(float64, uint64) bool) {
		for i := range h.counts {
			bound := h.bounds[min(i, len(h.bounds)-1)]
			if i == len(h.bounds) {
				bound = math.Nextafter(bound, math.Inf(1)) // beyond the last: a bucket of its own
			}
			if !yield(bound, h.counts[i].Load()) {
				return
			}
		}
	}
}

// Detail implements live.Source.
func (p panels) Detail(context.Context) (live.Detail, error) {
	s := p.r.Report()
	out := live.Detail{Facts: []string{
		fmt.Sprintf("replica %d of cluster %s", s.ID, s.Cluster), fmt.Sprintf("%s in term %d", s.Role, s.Term),
		"preset " + s.Preset, "durability " + s.Durability, "weir " + s.Version,
	}}
	if !s.Ready {
		out.Problems = []string{"Not ready: " + s.Why}
	}
	members := live.Table{Title: "Replicas", Wide: true, Columns: live.Columns("Replica", ":Address", ":Redis", ":Role", ":Link", "behind", "round trip", ":Error")}
	for i := range s.Members {
		m := &s.Members[i]
		role, link := "voter", "up"
		switch {
		case m.ID == s.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}
		switch {
		case m.ID == s.ID:
			link = "this one"
		case !m.Up:
			link = "down"
		}
		behind := live.Text("")
		if m.Match > 0 {
			behind = live.Number(s.Last - min(m.Match, s.Last))
		}
		members.Rows = append(members.Rows, []live.Cell{
			live.Text(strconv.FormatUint(m.ID, 10)), live.Text(m.Addr), live.Text(m.Redis), live.Text(role), live.Text(link).Alarm(!m.Up), behind,
			live.Duration(time.Duration(m.RTT * float64(time.Millisecond))), live.Text(m.Error).Alarm(m.Error != ""),
		})
	}
	log := live.Table{Title: "Log and state", Columns: live.Columns(":", "")}
	add := func(what string, c live.Cell) { log.Rows = append(log.Rows, []live.Cell{live.Text(what), c}) }
	add("newest entry", live.Whole(s.Last))
	add("committed", live.Whole(s.Commit))
	add("applied here", live.Whole(s.Applied))
	add("on this disk", live.Whole(s.Durable))
	add("snapshot ends at", live.Whole(s.Snapshot))
	add("revision", live.Whole(s.Revision))
	add("view", live.Whole(s.View))
	add("format", live.Number(s.Format))
	c := p.r.Status().Counters
	total := live.Table{Title: "Since the start", Columns: live.Columns(":", "")}
	add = func(what string, c live.Cell) { total.Rows = append(total.Rows, []live.Cell{live.Text(what), c}) }
	add("operations led", live.Number(c.Operations))
	add("elections stood for", live.Number(c.Elections))
	add("changes of the leader", live.Number(c.LeaderChanges))
	add("recovered as a new leader", live.Number(c.Recovered))
	add("sessions that expired", live.Number(c.Expired))
	add("weak writes lost", live.Number(c.IntentsLost).Alarm(c.IntentsLost > 0))
	add("states that diverged", live.Number(c.Diverged).Alarm(c.Diverged > 0))
	add("times that the disk hung", live.Number(c.Hangs).Alarm(c.Hangs > 0))
	out.Tables = []live.Table{members, log, total}
	return out, nil
}
