package outboxctl

import (
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/weirdb/weir/outbox"
)

// StatusReport is the state of an outbox as JSON.
type StatusReport struct {
	Table   string `json:"table"`   // name of the outbox table
	Server  string `json:"server"`  // name and version
	Version int    `json:"version"` // of the tables
	Layout  string `json:"layout"`  // queue or history
	Shards  int    `json:"shards"`  // number of shards
	Period  string `json:"period"`  // of partitions: none, day or month

	Pending   int64   `json:"pending"`            // messages to be delivered now
	OldestAge float64 `json:"oldest_age_seconds"` // of the pending; 0: there are none
	Scheduled int64   `json:"scheduled"`          // messages that are not due yet
	Parked    int64   `json:"parked"`             // messages that failed and are tried again
	Dead      int64   `json:"dead"`               // dead letters
	Delivered int64   `json:"delivered"`          // kept by layout history

	Leases []LeaseReport `json:"leases"` // leadership of each shard
	// CanTail reports whether the log can be followed, TailReason why not.
	CanTail    bool   `json:"can_tail"`
	TailReason string `json:"cannot_tail_because,omitempty"` // why the log cannot be followed
	// CatchAllRows are the rows of the catch-all partition, counted up to 1000.
	CatchAllRows *int64 `json:"catch_all_rows,omitempty"`
}

// LeaseReport describes the leadership of a shard.
type LeaseReport struct {
	Shard int    `json:"shard"` // its number, from 0
	Owner string `json:"owner"` // the last that led it
	Epoch int64  `json:"epoch"` // how often leadership was taken
	Held  bool   `json:"held"`  // a relay leads the shard now
}

// Report combines a store's description and status.
func Report(table string, d outbox.Description, s outbox.Status) StatusReport {
	r := StatusReport{
		Table: table, Server: d.Server, Version: d.Version, Layout: d.Layout.String(), Shards: d.Shards, Period: d.Period.String(),
		Pending: s.Pending, OldestAge: s.Oldest.Seconds(), Scheduled: s.Scheduled, Parked: s.Parked, Dead: s.Dead, Delivered: s.Delivered,
		Leases: make([]LeaseReport, 0, len(s.Leases)), CanTail: d.CanTail == nil,
	}
	if d.CanTail != nil {
		r.TailReason = d.CanTail.Error()
		var tail *outbox.TailError
		if errors.As(d.CanTail, &tail) {
			r.TailReason = tail.Reason
		}
	}
	for _, l := range s.Leases {
		r.Leases = append(r.Leases, LeaseReport{l.Shard, l.Owner, l.Epoch, l.Held})
	}
	return r
}

// MessageReport is a message as JSON. The payload is optional: as JSON if it is JSON, as text if
// it is UTF-8, else in base64.
type MessageReport struct {
	ID        outbox.ID         `json:"id"`                  // identity of the message
	Seq       int64             `json:"seq"`                 // its number, in the order of inserts
	State     outbox.State      `json:"state"`               // pending, scheduled, dead or delivered
	Topic     string            `json:"topic"`               // where it goes
	Key       string            `json:"key,omitempty"`       // messages of one key are delivered in order
	DedupKey  string            `json:"dedup_key,omitempty"` // of its producer, against duplicates
	Headers   map[string]string `json:"headers,omitempty"`   // for the consumer
	CreatedAt time.Time         `json:"created_at"`          // by the database's clock
	DueAt     time.Time         `json:"due_at,omitzero"`     // of the next attempt, or of a scheduled message
	EndedAt   time.Time         `json:"ended_at,omitzero"`   // dead or delivered since
	Attempts  int               `json:"attempts,omitempty"`  // deliveries that failed
	Reason    string            `json:"reason,omitempty"`    // why it is dead
	Error     string            `json:"error,omitempty"`     // the last
	Bytes     int               `json:"payload_bytes"`       // length of the payload

	Payload json.RawMessage `json:"payload,omitempty"` // a payload that is JSON
	Text    *string         `json:"text,omitempty"`    // a payload that is other UTF-8 text
	Base64  []byte          `json:"base64,omitempty"`  // any other payload
}

// ReportMessage converts a message, with or without its payload.
func ReportMessage(m *outbox.Listed, payload bool) MessageReport {
	r := MessageReport{
		ID: m.ID, Seq: m.Seq, State: m.State, Topic: m.Topic, Key: m.Key, DedupKey: m.DedupKey, Headers: m.Headers,
		CreatedAt: m.CreatedAt.UTC(), DueAt: m.DueAt, EndedAt: m.EndedAt, Attempts: m.Attempts, Reason: m.Reason, Error: m.Error,
		Bytes: len(m.Payload),
	}
	if m.Unreadable != nil && r.Error == "" {
		r.Error = m.Unreadable.Error()
	}
	switch {
	case !payload:
	case json.Valid(m.Payload):
		r.Payload = m.Payload
	case utf8.Valid(m.Payload):
		text := string(m.Payload)
		r.Text = &text
	default:
		r.Base64 = m.Payload
	}
	return r
}
