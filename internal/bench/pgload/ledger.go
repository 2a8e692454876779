package pgload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// Ledger is what each client knows of its operations when a run has ended: a
// client sends its numbers in order, so all of [0, sent) were acknowledged but
// those it lists.
type Ledger struct {
	clients []clientLedger
}

type clientLedger struct {
	sent    int64
	refused []int64 // answered with an error that was not expected: not stored
	unknown []int64 // in flight when the connection or the run ended: either way
}

// Sent returns how many operations were sent in all.
func (l *Ledger) Sent() int64 {
	var n int64
	for i := range l.clients {
		n += l.clients[i].sent
	}
	return n
}

// Unknown returns how many operations were sent and never answered.
func (l *Ledger) Unknown() int64 {
	var n int64
	for i := range l.clients {
		n += int64(len(l.clients[i].unknown))
	}
	return n
}

// Audit is the result of comparing a table with a ledger.
type Audit struct {
	Rows      int64 // in the table
	Lost      int64 // acknowledged and not there
	Twice     int64 // there more than once
	Uncalled  int64 // there, though never sent, refused, or meant to fail
	Undecided int64 // never answered, and there: allowed
	Examples  []string
}

// Err returns nil when the table holds exactly what was acknowledged, give or
// take the operations that were never answered.
func (a *Audit) Err() error {
	if a.Lost == 0 && a.Twice == 0 && a.Uncalled == 0 {
		return nil
	}
	return fmt.Errorf("table does not hold what was acknowledged: %d lost, %d twice, %d uncalled for (%q)", a.Lost, a.Twice, a.Uncalled, a.Examples)
}

func (a *Audit) example(format string, args ...any) {
	if len(a.Examples) < 5 {
		a.Examples = append(a.Examples, fmt.Sprintf(format, args...))
	}
}

// Verify reads the whole table over a connection of its own, which must not go
// through what is being tested, and compares it with the ledger. It takes about
// 0.2 s for a million rows and one bit of memory a row.
func (w Insert) Verify(ctx context.Context, dsn string, l *Ledger) (*Audit, error) {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to verify: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	c := newChecker(w, l)
	if _, err := conn.CopyTo(ctx, c, "COPY (SELECT value, created_at FROM "+w.table()+") TO STDOUT"); err != nil {
		return nil, fmt.Errorf("read %s to verify: %w", w.table(), err)
	}
	return c.finish()
}

// checker compares rows, written to it as COPY text, with a ledger.
type checker struct {
	workload Insert
	ledger   *Ledger
	seen     [][]uint64 // a bit for each operation of each client
	audit    Audit
	rest     []byte // a line that is not complete yet
}

func newChecker(w Insert, l *Ledger) *checker {
	c := &checker{workload: w, ledger: l, seen: make([][]uint64, len(l.clients))}
	for i := range l.clients {
		c.seen[i] = make([]uint64, (l.clients[i].sent+63)/64)
	}
	return c
}

// Write takes a piece of COPY output. Lines may be cut anywhere.
func (c *checker) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, after, ok := bytes.Cut(b, []byte{'\n'})
		if !ok {
			c.rest = append(c.rest, b...)
			return n, nil
		}
		if len(c.rest) > 0 {
			c.rest = append(c.rest, line...)
			line = c.rest
		}
		if err := c.row(line); err != nil {
			return 0, err
		}
		c.rest = c.rest[:0]
		b = after
	}
}

func (c *checker) row(line []byte) error {
	first, second, ok := bytes.Cut(line, []byte{'\t'})
	client, err1 := strconv.ParseInt(string(first), 10, 64)
	n, err2 := strconv.ParseInt(string(second), 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Errorf("row %q is not a client and a number", line)
	}
	c.audit.Rows++
	if client < 0 || client >= int64(len(c.seen)) || n < 0 || n >= c.ledger.clients[client].sent || c.workload.fails(int(client), n) {
		c.audit.Uncalled++
		c.audit.example("client %d, operation %d: there, not sent", client, n)
		return nil
	}
	word, bit := &c.seen[client][n/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		c.audit.Twice++
		c.audit.example("client %d, operation %d: there twice", client, n)
	}
	*word |= bit
	return nil
}

func (c *checker) finish() (*Audit, error) {
	if len(c.rest) > 0 {
		return nil, errors.New("table ended inside a row")
	}
	a := &c.audit
	for client := range c.ledger.clients {
		l := &c.ledger.clients[client]
		has := func(n int64) bool { return c.seen[client][n/64]>>(n%64)&1 != 0 }
		excused := make(map[int64]bool)
		for _, n := range l.unknown {
			excused[n] = true
			if has(n) {
				a.Undecided++
			}
		}
		for _, n := range l.refused {
			excused[n] = true
			if has(n) {
				a.Uncalled++
				a.example("client %d, operation %d: there, though refused", client, n)
			}
		}
		for n := range l.sent {
			if !has(n) && !excused[n] && !c.workload.fails(client, n) {
				a.Lost++
				a.example("client %d, operation %d: acknowledged, not there", client, n)
			}
		}
	}
	return a, nil
}
