package outboxctl

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/outbox"
)

func (s *Service) handler(metrics prometheus.Gatherer, loopback bool) http.Handler {
	mux := admin.Mux(metrics)
	s.page.Register(mux)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			admin.Plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		admin.Plain(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET /status.json", s.status)
	return admin.Guard(mux, loopback, live.Policy)
}

// describe returns the state as text: the rates since the start, and links.
func (s *Service) describe() string {
	now := s.Snapshot()
	began := Snapshot{At: s.began}
	text := fmt.Sprintf("weir outbox relay of %s, running for %s\n\n%s\n", s.Table(), now.At.Sub(s.began).Round(time.Second), Line(&began, &now, s.Claim()))
	if now.Stats.TailReason != "" {
		text += "\nThe log is not followed: " + now.Stats.TailReason + "\n"
	}
	if now.StatusErr != nil {
		text += "\nThe tables cannot be counted: " + now.StatusErr.Error() + "\n"
	}
	return text + "\n/metrics  /status.json  /healthz  /readyz  /debug/pprof/"
}

// liveStatus is what /status.json shows beside [StatusReport].
type liveStatus struct {
	StatusReport
	Claim        string            `json:"claim"` // log, poll, skip-locked or standby
	TailReason   string            `json:"tail_reason,omitempty"`
	UptimeSecs   float64           `json:"uptime_seconds"`
	StatusAgeSec float64           `json:"status_age_seconds"` // time since the counts were made
	Error        string            `json:"error,omitempty"`    // why the latest count failed
	Delivered    uint64            `json:"relay_delivered"`
	Retries      uint64            `json:"relay_retries"`
	Buried       map[string]uint64 `json:"relay_buried,omitempty"`
	InFlight     int64             `json:"relay_in_flight"`
	BrokerDown   bool              `json:"broker_down"`
}

func (s *Service) status(w http.ResponseWriter, _ *http.Request) {
	snap := s.Snapshot()
	if snap.CountedAt.IsZero() {
		admin.Plain(w, http.StatusServiceUnavailable, "the tables have not been read yet")
		return
	}
	out := liveStatus{
		StatusReport: Report(s.Table(), snap.Description, snap.Status),
		Claim:        s.Claim(), TailReason: snap.Stats.TailReason,
		UptimeSecs: snap.At.Sub(s.began).Seconds(), StatusAgeSec: snap.At.Sub(snap.CountedAt).Seconds(),
		Delivered: snap.Stats.Delivered, Retries: snap.Stats.Retries, Buried: snap.Stats.Buried,
		InFlight: snap.Stats.InFlight, BrokerDown: snap.Stats.BrokerDown,
	}
	if snap.Description.Period != outbox.Unpartitioned {
		out.CatchAllRows = &snap.CatchAllRows
	}
	if snap.StatusErr != nil {
		out.Error = snap.StatusErr.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(out) // the client has gone
}
