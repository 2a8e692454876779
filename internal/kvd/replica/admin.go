package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
)

// Report is what /status.json shows: the replica, its disk and its connections.
type Report struct {
	ID         uint64         `json:"id"`
	Cluster    string         `json:"cluster"`
	Version    string         `json:"version"`
	At         time.Time      `json:"at"`
	Ready      bool           `json:"ready"`
	Why        string         `json:"why,omitempty"` // it is not ready
	Role       string         `json:"role"`
	Leader     uint64         `json:"leader"`
	Term       uint64         `json:"term"`
	View       uint64         `json:"view"`
	Preset     string         `json:"preset"`
	Format     uint64         `json:"format"` // of the log and its commands, on which all members have agreed
	Durability string         `json:"durability"`
	Revision   uint64         `json:"revision"`
	Applied    uint64         `json:"applied"`
	Commit     uint64         `json:"commit"`
	Last       uint64         `json:"last"`
	Durable    uint64         `json:"durable"`
	Snapshot   uint64         `json:"snapshot"`
	Keys       int            `json:"keys"`
	Bytes      int64          `json:"bytes"`
	Sessions   int            `json:"sessions"`
	Clients    ClientReport   `json:"clients"`
	Members    []MemberReport `json:"members"`
}

// ClientReport counts connections.
type ClientReport struct {
	Native int `json:"native"`
	Redis  int `json:"redis"`
}

// MemberReport is a replica as this one sees it.
type MemberReport struct {
	ID      uint64  `json:"id"`
	Addr    string  `json:"address"`
	Redis   string  `json:"redis,omitempty"`
	Learner bool    `json:"learner,omitempty"`
	Up      bool    `json:"up"`
	Match   uint64  `json:"match,omitempty"` // as the leader knows it
	RTT     float64 `json:"rtt_ms,omitempty"`
	Error   string  `json:"error,omitempty"` // of the last connection
}

// Report returns the current state for people and scripts.
func (r *Replica) Report() Report {
	s := r.Status()
	out := Report{
		ID: s.ID, Cluster: r.cfg.Cluster, Version: r.cfg.Version, At: s.At, Role: roleOf(s), Leader: s.Leader, Term: s.Term, View: s.View,
		Preset: s.Preset, Format: s.Format, Durability: s.Durability, Revision: s.Revision, Applied: s.Applied, Commit: s.Commit, Last: s.Last,
		Durable: s.Durable, Snapshot: s.Snapshot, Keys: s.Keys, Bytes: s.Bytes, Sessions: s.Sessions,
	}
	if err := r.ready(); err != nil {
		out.Why = err.Error()
	} else {
		out.Ready = true
	}
	links := r.peers.transport.Stats()
	out.Clients = ClientReport{Native: links.Clients.Open, Redis: r.gateway.conns()}
	for _, m := range s.Members {
		member := MemberReport{ID: m.ID, Addr: m.Addr, Redis: m.Client, Learner: m.Learner, Up: m.ID == s.ID}
		for i := range links.Peers {
			if p := &links.Peers[i]; p.ID == m.ID && m.ID != s.ID {
				member.Up, member.RTT = p.Up, p.RTT.Smoothed.Seconds()*1e3
				if !p.Up {
					member.Error = p.LastErr
				}
			}
		}
		for i := range s.Peers {
			if s.Peers[i].ID == m.ID {
				member.Match = s.Peers[i].Match
			}
		}
		out.Members = append(out.Members, member)
	}
	return out
}

// ready reports whether requests should come here.
func (r *Replica) ready() error {
	if r.stopping.Load() {
		return errors.New("it stops")
	}
	return r.Status().Ready()
}

// roleOf names the role of a replica: leader, follower, candidate or
// precandidate.
func roleOf(s *Status) string { return strings.ToLower(strings.TrimPrefix(s.Role, "State")) }

// Serve answers HTTP requests on ln until ctx ends: /metrics, /healthz, /readyz,
// /status.json, /peer-delay and /debug/pprof/, and at / the live page, or plain text for clients
// that do not ask for HTML. journal, which may be nil, has the newest warnings. Serve closes ln.
func (r *Replica) Serve(ctx context.Context, ln net.Listener, metrics prometheus.Gatherer, journal *live.Journal, log *slog.Logger) error {
	shown := live.New(live.Config{Page: page(), Source: panels{r}, Journal: journal, Words: r.inWords, Log: log})
	recording, stop := context.WithCancel(ctx)
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		shown.Run(recording)
	}()
	defer func() {
		stop()
		<-recorded
	}()
	mux := admin.Mux(metrics)
	shown.Register(mux)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.ready(); err != nil {
			admin.Plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		admin.Plain(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(r.Report()) // a client that has left needs no answer
	})
	mux.HandleFunc("GET /peer-delay", func(w http.ResponseWriter, _ *http.Request) {
		admin.Plain(w, http.StatusOK, r.peers.transport.Delay().String())
	})
	// PUT: a page of another site cannot send that without a preflight request.
	mux.HandleFunc("PUT /peer-delay", r.putPeerDelay)
	return admin.Serve(ctx, ln, admin.Guard(mux, admin.IsLoopback(ln.Addr()), live.Policy), log)
}

// SetPeerDelay changes Config.PeerDelay while the replica runs, until it is started
// again.
func (r *Replica) SetPeerDelay(d time.Duration) error {
	if err := r.peers.transport.SetDelay(d); err != nil {
		return fmt.Errorf("set the delay of writes to other replicas: %w", err)
	}
	return nil
}

// putPeerDelay takes a duration such as 150us as the body of a request.
func (r *Replica) putPeerDelay(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 64))
	if err != nil {
		admin.Plain(w, http.StatusBadRequest, "read the duration: "+err.Error())
		return
	}
	d, err := time.ParseDuration(strings.TrimSpace(string(body)))
	if err == nil {
		err = r.SetPeerDelay(d)
	}
	if err != nil {
		admin.Plain(w, http.StatusBadRequest, err.Error()+"; send a duration from 0 to 10ms, such as 150us")
		return
	}
	r.cfg.Log.Info("messages to other replicas gather before they are written", "delay", d)
	admin.Plain(w, http.StatusOK, d.String())
}

// inWords is the report for people.
func (r *Replica) inWords() string {
	s := r.Report()
	var b strings.Builder
	fmt.Fprintf(&b, "weir kv serve, replica %d of cluster %s: %s in term %d, preset %s, durability %s\n", s.ID, s.Cluster, s.Role, s.Term, s.Preset, s.Durability)
	if !s.Ready {
		fmt.Fprintf(&b, "not ready: %s\n", s.Why)
	}
	fmt.Fprintf(&b, "\n%d keys, %d bytes, revision %d; entries: %d applied, %d committed, %d on disk, snapshot at %d\n",
		s.Keys, s.Bytes, s.Revision, s.Applied, s.Commit, s.Durable, s.Snapshot)
	fmt.Fprintf(&b, "%d sessions, %d native clients, %d Redis clients\n\n", s.Sessions, s.Clients.Native, s.Clients.Redis)
	table := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "replica\taddress\tredis\trole\tlink\tlag\trtt\terror")
	for i := range s.Members {
		m := &s.Members[i]
		role, link, lag, rtt := "voter", "up", "", ""
		if m.Learner {
			role = "learner"
		}
		if m.ID == s.Leader {
			role = "leader"
		}
		if !m.Up {
			link = "down"
		}
		if m.Match > 0 {
			lag = strconv.FormatUint(s.Last-min(m.Match, s.Last), 10)
		}
		if m.RTT > 0 {
			rtt = fmt.Sprintf("%.3fms", m.RTT)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, m.Addr, m.Redis, role, link, lag, rtt, m.Error)
	}
	_ = table.Flush() // into memory
	return b.String() + "\n/metrics  /status.json  /healthz  /readyz  /debug/pprof/"
}
