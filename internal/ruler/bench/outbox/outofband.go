package outboxbench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
)

// bodies is the table of payloads that are kept out of band.
const bodies = "weir_bench_bodies"

// outOfBand is the customary design with payloads in a separate table: the outbox has
// references to them, as in the claim check pattern. Both are written in one transaction, so
// that it loses nothing that a single row would keep.
//
// With fetch, the consumer of the messages reads the payloads and deletes them, with one
// statement each per batch. Without, only the references are delivered: that shows what the
// relay alone saves.
type outOfBand struct {
	subject
	fetch bool
	next  *atomic.Int64
}

// Reset implements [outboxload.Subject].
func (o *outOfBand) Reset(ctx context.Context) error {
	kind := "LONGBLOB"
	if o.rig.o.Engine == suite.PostgreSQL {
		kind = "bytea"
	}
	if err := o.rig.exec(ctx, "CREATE TABLE IF NOT EXISTS "+bodies+" (id BIGINT PRIMARY KEY, body "+kind+" NOT NULL)", "TRUNCATE TABLE "+bodies); err != nil {
		return err
	}
	return o.subject.Reset(ctx)
}

// Seed implements [outboxload.Subject].
func (o *outOfBand) Seed(ctx context.Context, msgs []outboxload.Message) (err error) {
	tx, err := o.rig.producers.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, rolledBack(tx))
		}
	}()
	rows := make([]outbox.Message, len(msgs))
	for i, m := range msgs {
		id := o.next.Add(1)
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+bodies+" (id, body) VALUES ("+o.mark(1)+", "+o.mark(2)+")", id, m.Payload); err != nil {
			return fmt.Errorf("keep a payload: %w", err)
		}
		m.Payload = reference(m.Payload, id)
		rows[i] = message(m)
	}
	if err := outbox.Enqueue(ctx, o.tx(tx), rows...); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Enqueue implements [outboxload.Subject].
func (o *outOfBand) Enqueue(ctx context.Context, m outboxload.Message) error {
	return o.Seed(ctx, []outboxload.Message{m})
}

// mark is the n-th placeholder of a statement.
func (o *outOfBand) mark(n int) string {
	if o.rig.o.Engine == suite.PostgreSQL {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// reference is stored in the outbox in place of a payload: its start, by which the ledger
// identifies the message, and the number of the payload.
func reference(payload []byte, id int64) []byte {
	return strconv.AppendInt(append([]byte(nil), payload[:outboxload.MinPayload]...), id, 10)
}

// referred parses the number of a payload.
func referred(reference []byte) (int64, error) {
	if len(reference) <= outboxload.MinPayload {
		return 0, fmt.Errorf("%q refers to no payload", reference)
	}
	return strconv.ParseInt(string(reference[outboxload.MinPayload:]), 10, 64)
}

// Settings implements [outboxload.Subject].
func (o *outOfBand) Settings() map[string]string {
	out := o.subject.Settings()
	out["payload"] = "out of band"
	if o.fetch {
		out["payload"] = "out of band, fetched"
	}
	return out
}

// Relay implements [outboxload.Subject].
func (o *outOfBand) Relay(deliver func([][]byte)) (outboxload.Relay, error) {
	if !o.fetch {
		return o.subject.Relay(deliver)
	}
	o.log.reset()
	c := o.config
	c.Logger = slog.New(&o.log)
	return o.relay(c, &fetching{o, deliver})
}

// fetching is a broker whose consumer fetches payloads.
type fetching struct {
	o       *outOfBand
	deliver func([][]byte)
}

// Publish implements [outbox.Sink].
func (f *fetching) Publish(ctx context.Context, msgs []outbox.Message) []error {
	err := f.consume(ctx, msgs)
	if err == nil {
		return nil
	}
	errs := make([]error, len(msgs))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// consume reads the payloads of messages, passes them on and deletes them.
func (f *fetching) consume(ctx context.Context, msgs []outbox.Message) error {
	ids := make([]string, len(msgs))
	place := make(map[int64]int, len(msgs))
	for i := range msgs {
		id, err := referred(msgs[i].Payload)
		if err != nil {
			return err
		}
		ids[i] = strconv.FormatInt(id, 10)
		place[id] = i
	}
	in := " WHERE id IN (" + strings.Join(ids, ", ") + ")"
	rows, err := f.o.rig.producers.QueryContext(ctx, "SELECT id, body FROM "+bodies+in)
	if err != nil {
		return fmt.Errorf("fetch payloads: %w", err)
	}
	payloads, err := fetched(rows, place)
	if err != nil {
		return err
	}
	f.deliver(payloads)
	if _, err := f.o.rig.producers.ExecContext(ctx, "DELETE FROM "+bodies+in); err != nil {
		return fmt.Errorf("remove payloads: %w", err)
	}
	return nil
}

// fetched reads payloads into their places.
func fetched(rows *sql.Rows, place map[int64]int) (_ [][]byte, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	payloads := make([][]byte, len(place))
	n := 0
	for rows.Next() {
		var id int64
		var body []byte
		if err := rows.Scan(&id, &body); err != nil {
			return nil, fmt.Errorf("fetch payloads: %w", err)
		}
		payloads[place[id]] = body
		n++
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("fetch payloads: %w", err)
	}
	if n != len(place) {
		return nil, fmt.Errorf("found %d payloads of %d", n, len(place))
	}
	return payloads, nil
}

// Close implements [outbox.Sink].
func (*fetching) Close() error { return nil }

// The sides of the experiments.
const (
	inRow         = "in the outbox"
	referenceOnly = "reference, not fetched"
	referenceRead = "reference, fetched and removed"
)

// keeping makes the subjects: payloads in the row, and outside of it.
func (s *run) keeping() (in *subject, alone, read *outOfBand) {
	in = s.subject(outbox.SkipLocked, s.best[0])
	next := &atomic.Int64{}
	of := func(fetch bool) *outOfBand {
		return &outOfBand{subject: subject{rig: s.rig, shape: in.shape, config: in.config, enqueue: withTx}, fetch: fetch, next: next}
	}
	return in, of(false), of(true)
}

// canKeep reports whether the engine supports the experiment, and leaves the experiment out
// otherwise.
func (s *run) canKeep() bool {
	if s.has(outbox.SkipLocked) {
		return true
	}
	s.Leave("payloads out of band: %s has no SKIP LOCKED", s.o.Engine.Title())
	return false
}

// outOfBand lets the customary design deliver a backlog whose payloads are in the outbox, or in
// a separate table.
func (s *run) outOfBand(ctx context.Context, name string, size int) error {
	if !s.canKeep() {
		return nil
	}
	p := s.o.Plan
	records := min(p.Records, max(20, p.OutOfBandBytes/int64(size)))
	e := s.backlog(OutOfBand, name, fmt.Sprintf("A backlog of %d payloads of %d bytes, in the outbox and in a separate table", records, size), p.Rounds, records, size)
	in, alone, read := s.keeping()
	c := outboxload.ConsumeConfig{Records: records, Payload: size}
	side := func(name string, by outboxload.Subject) {
		e.Sides = append(e.Sides, bench.Side{
			Name: name, Factors: map[string]string{"payloads": name},
			Run: func(ctx context.Context, _ int) (bench.Sample, error) { return s.consumed(ctx, by, c, keepsOrder(in)) },
		})
	}
	side(inRow, in)
	side(referenceRead, read)
	side(referenceOnly, alone)
	_, err := s.measure(ctx, e)
	return err
}

// outOfBandEnqueue compares the cost for producers.
func (s *run) outOfBandEnqueue(ctx context.Context, name string, size int) error {
	if !s.canKeep() {
		return nil
	}
	p := s.o.Plan
	producers := 8
	e := s.experiment(OutOfBand, name, fmt.Sprintf("Enqueuing payloads of %d bytes, in the outbox and in a separate table, %s", size, producersName(producers)), p.Rounds, map[string]string{
		"producers": strconv.Itoa(producers), "payload": strconv.Itoa(size), "seconds": p.GridDuration.String(),
	})
	in, alone, _ := s.keeping()
	c := outboxload.ProduceConfig{Producers: producers, Payload: size, Duration: p.GridDuration}
	for name, by := range map[string]outboxload.Subject{inRow: in, "reference": alone} {
		e.Sides = append(e.Sides, bench.Side{
			Name: name, Factors: map[string]string{"payloads": name},
			Run: func(ctx context.Context, _ int) (bench.Sample, error) { return s.produced(ctx, by, c, keepsOrder(in)) },
		})
	}
	if e.Sides[0].Name != inRow { // the first side is the baseline
		e.Sides[0], e.Sides[1] = e.Sides[1], e.Sides[0]
	}
	_, err := s.measure(ctx, e)
	return err
}
