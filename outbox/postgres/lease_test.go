package postgres

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
)

func (r *rig) lost(l outbox.Presence) {
	r.Helper()
	select {
	case <-l.Lost():
	case <-r.ctx().Done():
		r.Fatal("it never learns that it is lost")
	}
}

// take leads as soon as the server lets go of the last leader's lock.
func (r *rig) take(s *Store) outbox.Lease {
	r.Helper()
	var lease outbox.Lease
	r.eventually("the last leader's lock is free", func() bool {
		l, err := s.Lead(r.ctx(), 0)
		if err != nil && !errors.Is(err, outbox.ErrHeld) {
			r.Fatal("lead:", err)
		}
		lease = l
		return err == nil
	})
	return lease
}

func TestLeaseNoticesTheServersDeath(t *testing.T) {
	pg := roughServer(t)
	for what, strike := range map[string]func(*lab.Postgres){
		"killed": (*lab.Postgres).Kill,
		// It accepts connections and answers nothing.
		"hung": (*lab.Postgres).Pause,
	} {
		t.Run(what, func(t *testing.T) {
			r := newOwnRig(t, pg)
			s := r.open(t, Options{LeaseTimeout: time.Second})
			_, err := s.Migrate(r.ctx(), outbox.Plan{})
			r.check(err)
			l, err := s.Lead(r.ctx(), 0)
			r.check(err)
			select {
			case <-l.Lost():
				t.Fatal("lost at once")
			case <-time.After(10 * time.Millisecond):
			}
			r.exec("CHECKPOINT") // the lab's fast servers forget in a crash what they have not written
			strike(pg)
			r.lost(l)
			if err := l.Ack(r.ctx(), []outbox.Ref{{Seq: 1}}); !errors.Is(err, outbox.ErrDeposed) {
				t.Errorf("ack: %v, want %v", err, outbox.ErrDeposed)
			}
			if what == "hung" {
				pg.Resume()
			} else {
				r.check(pg.Restart(r.ctx()))
			}
			r.check(l.Close())
			r.check(r.take(s).Close())
		})
	}
}

// address is a pool of connections to one database, or another that it is moved to later.
type address struct {
	*pgxpool.Pool
	connected atomic.Int64
	moved     atomic.Bool
}

// movable returns an address that leads to the database of r, and then to that of successor.
func (r *rig) movable(successor *rig) *address {
	r.Helper()
	cfg, err := pgxpool.ParseConfig(r.dsn)
	r.check(err)
	other, err := pgxpool.ParseConfig(successor.dsn)
	r.check(err)
	a := &address{}
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		a.connected.Add(1)
		if a.moved.Load() {
			c.Database = other.ConnConfig.Database
		}
		return nil
	}
	a.Pool, err = pgxpool.NewWithConfig(r.ctx(), cfg)
	r.check(err)
	r.Cleanup(a.Close)
	return a
}

// A relay that stands by tries to lead several times a second, on the connection that it has,
// and rarely on a new one. It leaves the application's other connections alone until the
// address leads elsewhere.
func TestStandbyReconnectsRarely(t *testing.T) {
	r, successor := newRig(t, server(t)), newRig(t, server(t))
	r.lead(r.migrated(outbox.Plan{}))
	notifying := Options{Notify: true}
	for _, one := range []*rig{r, successor} {
		_, err := one.open(t, notifying).Migrate(r.ctx(), outbox.Plan{})
		r.check(err)
	}
	address := r.movable(successor)
	s, err := New(address.Pool, Options{LeaseTimeout: time.Minute, Owner: "standby"})
	r.check(err)
	const long = time.Hour
	for i, attempt := range []struct {
		patience time.Duration
		want     int64 // connections so far
	}{{long, 1}, {long, 1}, {0, 2}, {long, 2}, {long, 2}} {
		s.standbyPatience = attempt.patience
		if _, err := s.Lead(r.ctx(), 0); !errors.Is(err, outbox.ErrHeld) {
			t.Errorf("lead: %v, want %v", err, outbox.ErrHeld)
		}
		if n := address.connected.Load(); n != attempt.want {
			t.Errorf("attempt %d: %d connections were opened, want %d", i, n, attempt.want)
		}
	}
	woken, err := s.Wake(r.ctx())
	r.check(err)
	// The old leader and the connections of the pool stay with the old database.
	address.moved.Store(true)
	s.standbyPatience = 0
	l, err := s.Lead(r.ctx(), 0)
	r.check(err)
	defer func() { r.check(l.Close()) }()
	status, err := s.Status(r.ctx())
	r.check(err)
	if got := status.Leases[0].Owner; got != s.opts.Owner {
		t.Errorf("the pool stays with the database that %q leads", got)
	}
	r.eventually("the relay listens to the old database no longer", func() bool {
		select {
		case _, open := <-woken:
			return !open
		default:
			return false
		}
	})
}

// A leader that is the only relay follows the address.
func TestLeaderFollowsTheAddress(t *testing.T) {
	r, successor := newRig(t, server(t)), newRig(t, server(t))
	r.migrated(outbox.Plan{})
	successor.migrated(outbox.Plan{})
	address := r.movable(successor)
	s, err := New(address.Pool, Options{LeaseTimeout: time.Minute})
	r.check(err)
	s.leaderPatience = time.Millisecond
	l := r.lead(s)
	r.eventually("the leader looks where the address leads", func() bool { return address.connected.Load() > 4 })
	if l.deposed() != nil {
		t.Error("the lease is lost although the address still leads to its server")
	}
	address.moved.Store(true)
	r.lost(l)
}

// A relay that claims with skip-locked announces it, and claims, where the address leads, also when
// the old server still runs: a leader there would deliver the same messages.
func TestClaimsMoveWithTheAddress(t *testing.T) {
	r, successor := newRig(t, server(t)), newRig(t, server(t))
	r.migrated(outbox.Plan{})
	store := successor.migrated(outbox.Plan{})
	address := r.movable(successor)
	s, err := New(address.Pool, Options{LeaseTimeout: time.Minute})
	r.check(err)
	s.leaderPatience = time.Millisecond
	p, err := s.Announce(r.ctx())
	r.check(err)
	address.moved.Store(true)
	r.lost(p)
	r.check(p.Close())
	p, err = s.Announce(r.ctx())
	r.check(err)
	defer p.Close()
	if _, err := store.Lead(r.ctx(), 0); !errors.Is(err, outbox.ErrMixedClaims) {
		t.Errorf("lead beside claims: %v, want %v", err, outbox.ErrMixedClaims)
	}
	successor.enqueue(outbox.Message{Topic: "t"})
	claim, err := s.Claim(r.ctx(), outbox.ClaimRequest{Limit: 1})
	r.check(err)
	if n := len(claim.Rows()); n != 1 {
		t.Errorf("%d rows were claimed, want 1: connections to the old server stay", n)
	}
	r.check(claim.Release())
}

// A server that hangs while a relay takes the lead ends the attempt.
func TestLeadOfAServerThatHangs(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	r.migrated(outbox.Plan{})
	for _, at := range []struct{ statement, want string }{
		{"UPDATE ", "the server has not answered within 1.5s"},
		{"DELETE ", "has not answered within 500ms"},
	} {
		relay := labtest.Relay(t, pg.Addr())
		cfg, err := pgxpool.ParseConfig(strings.Replace(r.dsn, pg.Addr(), relay.Addr(), 1))
		r.check(err)
		cfg.ConnConfig.Tracer = stall{at.statement, func() { relay.Stall() }}
		pool, err := pgxpool.NewWithConfig(r.ctx(), cfg)
		r.check(err)
		s, err := New(pool, Options{LeaseTimeout: 500 * time.Millisecond})
		r.check(err)
		s.answerPatience = 1500 * time.Millisecond
		began := time.Now()
		_, err = s.Lead(r.ctx(), 0)
		if err == nil || !strings.Contains(err.Error(), at.want) || time.Since(began) > patience/2 {
			t.Errorf("lead, with a server that hangs at %s: %v after %v, want %q", at.statement, err, time.Since(began), at.want)
		}
		relay.Heal()
		pool.Close()
		r.check(r.take(r.migrated(outbox.Plan{})).Close())
	}
}

// A connection that hangs beside a healthy session of the lock ends the attempt, too.
func TestLeadWithAConnectionThatHangs(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	r.migrated(outbox.Plan{})
	cfg, err := pgxpool.ParseConfig(r.dsn)
	r.check(err)
	var armed atomic.Bool // once the epoch is incremented on the session of the lock
	cfg.ConnConfig.Tracer = stall{"UPDATE ", func() { armed.Store(true) }}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &deafConn{Conn: c, armed: &armed}, err
	}
	pool, err := pgxpool.NewWithConfig(r.ctx(), cfg)
	r.check(err)
	defer pool.Close()
	s, err := New(pool, Options{LeaseTimeout: 500 * time.Millisecond})
	r.check(err)
	s.answerPatience = 500 * time.Millisecond
	if _, err := s.Lead(r.ctx(), 0); err == nil || !strings.Contains(err.Error(), "the server has not answered within 500ms") {
		t.Errorf("lead, with a connection that hangs: %v", err)
	}
}

// deafConn is a connection on which nothing arrives any more once it has asked for the server's
// place.
type deafConn struct {
	net.Conn
	armed *atomic.Bool
	deaf  atomic.Bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	if c.armed.Load() && bytes.Contains(b, []byte("pg_postmaster_start_time")) {
		c.deaf.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *deafConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// stall is a tracer that calls a function before statements that begin with a text.
type stall struct {
	text string
	f    func()
}

func (s stall) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, s.text) {
		s.f()
	}
	return ctx
}

func (stall) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A leader whose address moves must not read or write where another relay may lead.
func TestLeaseKeepsToItsServer(t *testing.T) {
	r, successor := newRig(t, server(t)), newRig(t, server(t))
	r.migrated(outbox.Plan{})
	successor.migrated(outbox.Plan{})
	successor.enqueue(outbox.Message{Topic: "t"})
	address := r.movable(successor)
	s, err := New(address.Pool, Options{LeaseTimeout: time.Minute})
	r.check(err)
	l := r.lead(s)
	r.read(l)
	address.moved.Store(true)
	closeConn(l.read.conn) // as a firewall does
	closeConn(l.write.conn)
	page, err := l.Read(r.ctx(), outbox.ReadRequest{Limit: 10, MaxBytes: 1 << 20})
	if !errors.Is(err, outbox.ErrDeposed) {
		t.Errorf("read %d rows of another database, error %v, want %v", len(page.Rows), err, outbox.ErrDeposed)
	}
	if err := l.Ack(r.ctx(), []outbox.Ref{{Seq: 1}}); !errors.Is(err, outbox.ErrDeposed) {
		t.Errorf("ack: %v, want %v", err, outbox.ErrDeposed)
	}
}

// The lease is lost to this process, and its lock lives on at the server.
func TestLeaseNoticesACutNetwork(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{})
	relay := labtest.Relay(t, pg.Addr())
	far, err := Open(r.ctx(), strings.Replace(r.dsn, pg.Addr(), relay.Addr(), 1), Options{LeaseTimeout: time.Second})
	r.check(err)
	defer far.Close()
	l, err := far.Lead(r.ctx(), 0)
	r.check(err)
	relay.Stall()
	r.lost(l)
	if _, err := s.Lead(r.ctx(), 0); !errors.Is(err, outbox.ErrHeld) {
		t.Errorf("the server knows of no cut yet, and another leads: %v", err)
	}
	r.cut(0) // as keepalives do after some seconds
	r.check(r.take(s).Close())
	relay.Heal()
	r.check(l.Close())
}

// TestASilentSessionLosesItsLock: a leader that is stopped, whose connection
// stands, does not keep the others from leading for ever.
func TestASilentSessionLosesItsLock(t *testing.T) {
	r := newRig(t, server(t))
	s := r.migrated(outbox.Plan{})
	c, err := s.connectToWait(r.ctx())
	r.check(err)
	defer closeConn(c)
	n, _, err := s.ready(r.ctx())
	r.check(err)
	_, err = c.Exec(r.ctx(), "SELECT pg_advisory_lock($1)", n.leaseKey(0))
	r.check(err)
	r.check(limitSilence(r.ctx(), c, 100*time.Millisecond))
	r.check(r.take(s).Close())
}

func TestWake(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{})
	if woken, err := s.Wake(r.ctx()); err != nil || woken != nil {
		t.Errorf("wake without the trigger: %v, %v, want neither", woken, err)
	}
	s = r.open(t, Options{Notify: true})
	done, err := s.Migrate(r.ctx(), outbox.Plan{})
	r.check(err)
	if len(done) != 2 {
		t.Errorf("adding the trigger did %q", done)
	}
	ctx, cancel := context.WithCancel(r.ctx())
	woken, err := s.Wake(ctx)
	r.check(err)
	for range 3 {
		r.enqueue(notes(100)...)
		select {
		case _, open := <-woken:
			if !open {
				t.Fatal("the channel is closed")
			}
		case <-r.ctx().Done():
			t.Fatal("an insert wakes nobody")
		}
	}
	// Its end and that of its connection are told alike.
	closes := func(woken <-chan struct{}) {
		t.Helper()
		r.eventually("the channel is closed", func() bool {
			select {
			case _, open := <-woken:
				return !open
			default:
				return false
			}
		})
	}
	cancel()
	closes(woken)
	woken, err = s.Wake(r.ctx())
	r.check(err)
	r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()")
	closes(woken)
}

func TestTailNeedsALogicalLog(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"wal_level": "replica"}})
	r := newOwnRig(t, pg)
	s := r.migrated(outbox.Plan{})
	var refusal *outbox.TailError
	if _, err := r.lead(s).Tail(r.ctx()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, "wal_level") {
		t.Errorf("tail: %v, want a TailError that names wal_level", err)
	}
	d, err := s.Describe(r.ctx())
	r.check(err)
	if !errors.As(d.CanTail, &refusal) || !strings.Contains(refusal.Reason, "wal_level") {
		t.Errorf("the description says %v", d.CanTail)
	}
}

func TestTailLeavesNothingBehind(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{Layout: outbox.History})
	l := r.lead(s)
	next := func(f outbox.Tail, want int) (rows []outbox.Row) {
		t.Helper()
		for len(rows) < want {
			more, err := f.Next(r.ctx())
			r.check(err)
			rows = append(rows, more...)
		}
		return rows
	}
	f, err := l.Tail(r.ctx())
	r.check(err)
	r.exec(`INSERT INTO weir_outbox (topic, headers) VALUES ('t', 'no JSON')`)
	if rows := next(f, 1); rows[0].Unreadable == nil || rows[0].Topic != "t" {
		t.Errorf("row %+v, want it unreadable", rows[0])
	}
	// An end of the context is not the end of the tail.
	ctx, cancel := context.WithCancel(r.ctx())
	cancel()
	if _, err := f.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("next: %v, want %v", err, context.Canceled)
	}
	const many = tailRows + 1000 // more than are kept at hand
	r.enqueue(notes(many)...)
	if rows := next(f, many); len(rows) != many {
		t.Errorf("%d rows", len(rows))
	}
	// A conversion puts another table into its place; the tail goes on there.
	plan := outbox.Plan{Layout: outbox.History, Convert: true, Partition: outbox.PartitionSpec{Period: outbox.Daily}}
	_, err = s.Migrate(r.ctx(), plan)
	r.check(err)
	r.enqueue(note(7))
	if rows := next(f, 1); len(rows) != 1 || rows[0].Key != "7" {
		t.Errorf("%d rows after the conversion, the first is %+v; want the new one", len(rows), rows[0].Message)
	}
	r.check(f.Close())
	r.check(f.Close())
	if _, err := f.Next(r.ctx()); err == nil {
		t.Error("a closed tail goes on")
	}
	r.eventually("the slot is gone", func() bool {
		var n int
		r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()").Scan(&n))
		return n == 0
	})
	// The server's end is the tail's end.
	f, err = l.Tail(r.ctx())
	r.check(err)
	r.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()")
	if _, err := f.Next(r.ctx()); err == nil {
		t.Error("a tail goes on without its server")
	}
	r.check(f.Close())
}

// A slot that has to wait for a long transaction is given up, and is not left
// to the server half made.
func TestTailGivesUpWaiting(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	r.migrated(outbox.Plan{})
	s := r.open(t, Options{})
	s.patience = 3 * time.Second
	l := r.lead(s)
	c := r.conn()
	r.on(c, "BEGIN")
	r.on(c, "INSERT INTO weir_outbox (topic) VALUES ('long')")
	var refusal *outbox.TailError
	if _, err := l.Tail(r.ctx()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, "transactions") {
		t.Errorf("tail: %v, want a TailError that names the transactions", err)
	}
	r.eventually("no slot is left", func() bool {
		var n int
		r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()").Scan(&n))
		return n == 0
	})
	r.on(c, "COMMIT")
	r.check(l.Close())
	f, err := r.lead(r.open(t, Options{})).Tail(r.ctx()) // with more patience than above
	r.check(err)
	r.check(f.Close())
}

func TestWireConfig(t *testing.T) {
	for dsn, want := range map[string]string{
		"host=db.example port=5 user=u dbname=d sslmode=disable":     "db.example:5 disable",
		"host=db.example port=5 user=u dbname=d sslmode=prefer":      "db.example:5 prefer",
		"host=db.example port=5 user=u dbname=d sslmode=allow":       "db.example:5 allow",
		"host=db.example port=5 user=u dbname=d sslmode=require":     "db.example:5 require",
		"host=db.example port=5 user=u dbname=d sslmode=verify-full": "db.example:5 verify-full",
		"host=::1 port=5 user=u dbname=d sslmode=disable":            "[::1]:5 disable",
		"host=/run/pg port=5 user=u dbname=d":                        "/run/pg/.s.PGSQL.5 disable",
		"host=a,b port=5,6 user=u dbname=d sslmode=prefer":           "a:5 prefer",
	} {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		wire := wireConfig(cfg)
		if got := wire.Address + " " + string(wire.TLSMode); got != want || wire.User != "u" || wire.Database != "d" {
			t.Errorf("%s: %s, want %s", dsn, got, want)
		}
		if (wire.TLSConfig != nil) != (wire.TLSMode != "disable") {
			t.Errorf("%s: mode %s with configuration %v", dsn, wire.TLSMode, wire.TLSConfig != nil)
		}
	}
}

// A password of the hour, as clouds have it, is asked for by leases and tails, too.
func TestLeaseAsksForItsPassword(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{
		Durability: lab.Fast, Auth: lab.SCRAM, TLS: lab.TLSRequired, Settings: map[string]string{"wal_level": "logical"},
	})
	cfg, err := pgxpool.ParseConfig(pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.Password = ""
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.Password = pg.Password()
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s, err := New(pool, Options{LeaseTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Migrate(t.Context(), outbox.Plan{}); err != nil {
		t.Fatal(err)
	}
	l, err := s.Lead(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.Tail(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
