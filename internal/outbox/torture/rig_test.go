package torture

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// patience bounds every wait; only a defect reaches it.
const patience = 2 * time.Minute

// rig is a database with the tables, and a ledger.
type rig struct {
	*testing.T
	db     *database
	store  outbox.Store
	ledger *Ledger
	log    *logBook
}

// shared are the servers of tests that neither end nor fill them.
var shared = map[string]*labtest.Shared[sharedDatabase]{"postgres": share("postgres"), "mariadb": share("mariadb")}

type sharedDatabase struct{ *database }

// Discard ends the server.
func (d sharedDatabase) Discard(ctx context.Context) error { return d.Close(ctx) }

func share(engine string) *labtest.Shared[sharedDatabase] {
	return labtest.Share(func(ctx context.Context) (sharedDatabase, error) {
		d, err := startDatabase(ctx, engine, lab.Fast)
		return sharedDatabase{d}, err
	})
}

// eachEngine runs f on every kind of server that a relay may have, in a database of its
// own.
func eachEngine(t *testing.T, plan outbox.Plan, f func(r *rig)) {
	for _, engine := range []string{"postgres", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			requireEngine(t, engine)
			server := shared[engine].Get(t)
			name := fmt.Sprintf("own_%d", databases.Add(1))
			if _, err := server.pool.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
				t.Fatal(err)
			}
			db, err := openDatabase(t.Context(), server.server.(interface{ DSN(string) string }).DSN(name))
			if err != nil {
				t.Fatal(err)
			}
			f(rigOf(t, db, plan))
		})
	}
}

var databases atomic.Int64

func newRig(t *testing.T, engine string, plan outbox.Plan) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	db, err := startDatabase(ctx, engine, lab.Fast)
	if err != nil {
		t.Fatal(err)
	}
	return rigOf(t, db, plan)
}

// rigOf takes a database over.
func rigOf(t *testing.T, db *database, plan outbox.Plan) *rig {
	t.Helper()
	r := &rig{T: t, db: db, ledger: NewLedger(), log: &logBook{}}
	t.Cleanup(func() { r.check(db.Close(context.Background())) })
	db.pool.SetMaxIdleConns(16)
	r.check(db.migrate(r.ctx(), plan))
	var err error
	r.store, err = db.open(r.ctx())
	r.check(err)
	t.Cleanup(func() { r.check(r.store.Close()) })
	return r
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) exec(format string, args ...any) {
	r.Helper()
	text := fmt.Sprintf(format, args...)
	if _, err := r.db.pool.ExecContext(r.ctx(), text); err != nil {
		r.Fatalf("%s: %v", text, err)
	}
}

// enqueue commits messages of a chain, from n on, in one transaction.
func (r *rig) enqueue(chain string, n, count int) {
	r.Helper()
	msgs := make([]outbox.Message, count)
	for i := range msgs {
		msgs[i] = message(Entry{Chain: chain, N: n + i, Attempt: 1})
	}
	r.check(outbox.Enqueue(r.ctx(), r.db.tx(r.db.pool), msgs...))
	r.committed(chain, n, count)
}

func (r *rig) committed(chain string, n, count int) {
	for i := range count {
		r.ledger.Committed(Entry{Chain: chain, N: n + i, Attempt: 1})
	}
}

func message(e Entry) outbox.Message {
	return outbox.Message{Topic: topic, Key: e.Chain, Payload: e.encode()}
}

// relay runs a relay in this process until the function that it returns is
// called.
func (r *rig) relay(sink outbox.Sink, cfg outbox.Config) (*outbox.Relay, func()) {
	r.Helper()
	return r.relayOf(r.store, sink, cfg)
}

func (r *rig) relayOf(store outbox.Store, sink outbox.Sink, cfg outbox.Config) (*outbox.Relay, func()) {
	r.Helper()
	if cfg.Claim == outbox.Auto {
		cfg.Claim = outbox.Poll
	}
	cfg.TakeOver = 20 * time.Millisecond
	cfg.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	if cfg.Retry == (outbox.RetryPolicy{}) {
		// However long the test takes, it is not the number of attempts that ends it.
		cfg.Retry = outbox.RetryPolicy{MaxAttempts: 1_000_000, Base: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	}
	relay, err := outbox.NewRelay(store, sink, cfg)
	r.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("relay: %v", err)
		}
	})
	r.Cleanup(stop)
	return relay, stop
}

// eventually waits for what something else brings about.
func (r *rig) eventually(what string, f func() bool) {
	r.Helper()
	testkit.Await(r, f, func() string { return fmt.Sprintf("%s; the relay's last words:\n%s", what, r.log.tail()) })
}

// drained waits until nothing is pending.
func (r *rig) drained() {
	r.Helper()
	r.eventually("nothing is pending", func() bool {
		s, err := r.store.Status(r.ctx())
		return err == nil && s.Pending+s.Scheduled == 0
	})
}

// dead lists the dead letters.
func (r *rig) dead() []outbox.Listed {
	r.Helper()
	all, err := r.store.List(r.ctx(), outbox.Query{State: outbox.Dead, Limit: 1000})
	r.check(err)
	return all
}

// holds asks the ledger for its verdict.
func (r *rig) holds(dead ...Entry) Verdict {
	r.Helper()
	v := r.ledger.Verdict(dead, nil)
	if !v.Holds() {
		r.Errorf("verdict %+v", v)
	}
	return v
}

// scripted is a sink in this process that writes into a ledger and fails as it
// is told. It keeps what sinks promise about the order of a call.
type scripted struct {
	ledger *Ledger
	mu     sync.Mutex
	decide func(e Entry) error // nil: all is taken
}

func (s *scripted) set(decide func(e Entry) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide = decide
}

func (s *scripted) Publish(_ context.Context, msgs []outbox.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(msgs))
	behind := map[string]bool{}
	for i := range msgs {
		e, err := DecodeEntry(msgs[i].Payload)
		switch {
		case err != nil:
			errs[i] = outbox.Reject(err)
			continue
		case msgs[i].Key != "" && behind[msgs[i].Key]:
			errs[i] = outbox.ErrHeldBack
			continue
		case s.decide != nil:
			errs[i] = s.decide(e)
		}
		if errs[i] != nil {
			behind[msgs[i].Key] = true
			continue
		}
		s.ledger.Delivered(e)
	}
	return errs
}

func (s *scripted) Close() error { return nil }

// logBook keeps what a relay logs.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBook) contains(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), words)
}

func (l *logBook) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.buf.String()
	return text[max(0, len(text)-2000):]
}
