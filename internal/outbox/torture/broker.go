package torture

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/outbox"
)

// Trouble is how often the ledger's broker misbehaves: once in so many requests or messages, never
// if zero. A retry of the same message may succeed.
type Trouble struct {
	Slow   int // one in so many requests is answered after a quarter of a second
	Close  int // for one in so many requests, half is accepted and the connection closed
	Refuse int // one in so many requests is refused as a whole
	Fail   int // one in so many messages fails, which costs it an attempt
}

// everyTrouble is the default of a run.
var everyTrouble = Trouble{Slow: 300, Close: 200, Refuse: 200, Fail: 300}

// ledgerBroker is a broker that records messages in a ledger, in the order of arrival, before it
// confirms them. It runs in the process of the harness, so that its answers and the arrivals
// can be compared, and it can be killed and restarted like a real one.
type ledgerBroker struct {
	ledger  *Ledger
	trouble Trouble
	latency time.Duration
	addr    string
	held    *lab.Ports // keeps addr reserved while the broker is dead

	// visible returns which entries another session of the database can see; nil
	// means no check.
	visible func(ctx context.Context, of []Entry) (map[Entry]bool, error)

	mu     sync.Mutex // guards what follows
	listen net.Listener
	conns  map[net.Conn]struct{}
	open   sync.WaitGroup
}

// publishRequest is a request: the payloads of messages, in order.
type publishRequest struct{ Payloads [][]byte }

// publishResponse has a kind for each message, or nothing if all were accepted, and an error text.
type publishResponse struct {
	Kinds []kind
	Words string
}

type kind uint8

const (
	taken kind = iota
	failed
	rejected
	away
	heldBack
)

// startLedgerBroker starts the broker on a reserved port.
func startLedgerBroker(ledger *Ledger, trouble Trouble, latency time.Duration) (*ledgerBroker, error) {
	held, err := lab.ReservePorts(1)
	if err != nil {
		return nil, fmt.Errorf("open the ledger's broker: %w", err)
	}
	b := &ledgerBroker{ledger: ledger, trouble: trouble, latency: latency, addr: held.Addrs()[0], held: held, conns: map[net.Conn]struct{}{}}
	if err := b.Restart(context.Background()); err != nil {
		return nil, errors.Join(err, held.Release())
	}
	return b, nil
}

// setVisible makes the broker check, before it accepts a message, that the message's transaction is
// visible. It must be called before the first request.
func (b *ledgerBroker) setVisible(visible func(context.Context, []Entry) (map[Entry]bool, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.visible = visible
}

// checkVisible records whether the transactions of a request are visible. It records nothing while the
// database is away.
func (b *ledgerBroker) checkVisible(o publishRequest) {
	b.mu.Lock()
	visible := b.visible
	b.mu.Unlock()
	if visible == nil {
		return
	}
	var entries []Entry
	for _, payload := range o.Payloads {
		if e, err := DecodeEntry(payload); err == nil {
			entries = append(entries, e)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), visibleTimeout)
	defer cancel()
	seen, err := visible(ctx, entries)
	if err != nil {
		return
	}
	for _, e := range entries {
		b.ledger.NoteVisible(e, seen[e])
	}
}

// visibleTimeout bounds checkVisible.
const visibleTimeout = 5 * time.Second

// Address returns the address for Worker.
func (b *ledgerBroker) Address() string { return ledgerScheme + b.addr }

// Restart listens on the same address again.
func (b *ledgerBroker) Restart(context.Context) error {
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		return fmt.Errorf("open the ledger's broker: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listen = l
	b.open.Go(func() { b.accept(l) })
	return nil
}

// Kill closes all connections, also those with unanswered requests.
func (b *ledgerBroker) Kill() {
	b.mu.Lock()
	if b.listen != nil {
		_ = b.listen.Close()
		b.listen = nil
	}
	for c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.open.Wait()
}

// Stop kills the broker and releases its port.
func (b *ledgerBroker) Stop(context.Context) error {
	b.Kill()
	return b.held.Release()
}

func (b *ledgerBroker) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		b.mu.Lock()
		if b.listen != l { // killed since
			b.mu.Unlock()
			_ = c.Close()
			return
		}
		b.conns[c] = struct{}{}
		b.open.Go(func() {
			b.serve(c)
			_ = c.Close()
			b.mu.Lock()
			delete(b.conns, c)
			b.mu.Unlock()
		})
		b.mu.Unlock()
	}
}

// serve answers requests until the connection ends.
func (b *ledgerBroker) serve(c net.Conn) {
	in, out := gob.NewDecoder(c), gob.NewEncoder(c)
	for {
		var o publishRequest
		if in.Decode(&o) != nil {
			return
		}
		b.checkVisible(o)
		time.Sleep(b.latency)
		if oneIn(b.trouble.Slow) {
			time.Sleep(250 * time.Millisecond)
		}
		r, ok := b.take(o)
		if !ok || out.Encode(r) != nil {
			return
		}
	}
}

// oneIn returns true once in n times on average, never for n = 0.
func oneIn(n int) bool { return n > 0 && rand.IntN(n) == 0 }

// take records a request in the ledger. ok is false if the connection is to be closed without an
// answer.
func (b *ledgerBroker) take(o publishRequest) (r publishResponse, ok bool) {
	if oneIn(b.trouble.Refuse) {
		return publishResponse{Kinds: fill(len(o.Payloads), away), Words: "the broker takes nothing at the moment"}, true
	}
	if oneIn(b.trouble.Close) {
		o.Payloads = o.Payloads[:len(o.Payloads)/2]
		defer func() { ok = false }()
	}
	kinds := fill(len(o.Payloads), taken)
	behind := map[string]bool{}
	bad := false
	for i, payload := range o.Payloads {
		e, err := DecodeEntry(payload)
		switch {
		case err != nil:
			kinds[i], r.Words = rejected, err.Error()
		case e.Poison:
			kinds[i], r.Words = rejected, "poison"
		case behind[e.Chain]:
			kinds[i] = heldBack
		case oneIn(b.trouble.Fail):
			kinds[i], r.Words = failed, "the broker has a bad moment"
			behind[e.Chain] = !isFree(e.Chain)
		default:
			b.ledger.Delivered(e)
			continue
		}
		bad = true
	}
	if bad {
		r.Kinds = kinds
	}
	return r, true
}

func fill(n int, k kind) []kind {
	all := make([]kind, n)
	for i := range all {
		all[i] = k
	}
	return all
}

// ledgerScheme is the scheme of the ledger broker's address.
const ledgerScheme = "ledger://"

// ledgerSink is the client of the ledger's broker. It implements [outbox.Sink].
type ledgerSink struct {
	addr string

	mu   sync.Mutex
	idle []*ledgerConn
}

type ledgerConn struct {
	net.Conn
	in  *gob.Decoder
	out *gob.Encoder
}

func (s *ledgerSink) conn(ctx context.Context) (*ledgerConn, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return c, nil
	}
	s.mu.Unlock()
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	return &ledgerConn{c, gob.NewDecoder(c), gob.NewEncoder(c)}, nil
}

// Publish implements [outbox.Sink].
func (s *ledgerSink) Publish(ctx context.Context, msgs []outbox.Message) []error {
	r, err := s.send(ctx, msgs)
	if err != nil {
		err = outbox.Unavailable(fmt.Errorf("ledger: %w", err))
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		errs := make([]error, len(msgs))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	if r.Kinds == nil {
		return nil
	}
	errs := make([]error, len(msgs))
	for i, k := range r.Kinds {
		switch cause := errors.New(r.Words); k {
		case failed:
			errs[i] = cause
		case rejected:
			errs[i] = outbox.Invalid(cause)
		case away:
			errs[i] = outbox.Unavailable(cause)
		case heldBack:
			errs[i] = outbox.ErrHeldBack
		}
	}
	return errs
}

func (s *ledgerSink) send(ctx context.Context, msgs []outbox.Message) (r publishResponse, err error) {
	c, err := s.conn(ctx)
	if err != nil {
		return r, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	defer func() {
		if err != nil {
			_ = c.Close()
			return
		}
		s.mu.Lock()
		s.idle = append(s.idle, c)
		s.mu.Unlock()
	}()
	var o publishRequest
	for i := range msgs {
		o.Payloads = append(o.Payloads, msgs[i].Payload)
	}
	if err := c.out.Encode(o); err != nil {
		return r, err
	}
	if err := c.in.Decode(&r); err != nil {
		return r, err
	}
	if r.Kinds != nil && len(r.Kinds) != len(msgs) {
		return r, fmt.Errorf("%d answers for %d messages", len(r.Kinds), len(msgs))
	}
	return r, nil
}

// Close implements [outbox.Sink].
func (s *ledgerSink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.idle {
		_ = c.Close()
	}
	s.idle = nil
	return nil
}
