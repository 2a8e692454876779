package torture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/outbox/outboxctl"
	"github.com/weirdb/weir/outbox"
)

// Writing is what producers have done.
type Writing struct {
	Commits    int64 `json:"commits"`     // transactions that were acknowledged
	RolledBack int64 `json:"rolled_back"` // transactions that were rolled back on purpose
	HungUp     int64 `json:"hung_up"`     // connections closed in the middle of a transaction
	Errors     int64 `json:"errors"`      // transactions that failed before their COMMIT
	Unknown    int64 `json:"unknown"`     // whose COMMIT failed, so that it may have happened
}

type writing struct{ commits, rolledBack, hungUp, errors, unknown atomic.Int64 }

func (w *writing) counts() Writing {
	return Writing{w.commits.Load(), w.rolledBack.Load(), w.hungUp.Load(), w.errors.Load(), w.unknown.Load()}
}

// producer commits messages of some chains, one transaction at a time. Its
// transactions overlap with those of others, are now and then slow to commit,
// and roll back, so that numbers appear in any order or never.
//
// When a COMMIT fails its outcome is unknown. The producer then tries again with
// the same numbers: the application's table has them as its primary key, so the
// second transaction waits for the first one's end and fails if that committed.
type producer struct {
	*database
	ledger *Ledger
	counts *writing
	chains []chainState
	slow   bool // some transactions stay open for long
	poison bool // some messages are poison
}

// chainState is the state of a chain.
type chainState struct {
	name    string
	next    int // N of its next message
	attempt int // of the next message
	unknown bool
}

// chainsEach is how many chains a producer writes; the last has no key.
const chainsEach = 5

func newProducer(d *database, ledger *Ledger, counts *writing, id int, slow, poison bool) *producer {
	p := &producer{database: d, ledger: ledger, counts: counts, slow: slow, poison: poison}
	for i := range chainsEach {
		name := fmt.Sprintf("key-%d-%d", id, i)
		if i == chainsEach-1 {
			name = fmt.Sprintf("%s-%d", free, id)
		}
		p.chains = append(p.chains, chainState{name: name, next: 1, attempt: 1})
	}
	return p
}

// run commits until ctx ends. The outcome of the last commit may stay unknown: the application's
// table shows it.
func (p *producer) run(ctx context.Context) {
	for ctx.Err() == nil {
		c := &p.chains[rand.IntN(len(p.chains))]
		if err := p.step(ctx, c); err != nil {
			pause(ctx, time.Duration(5+rand.IntN(20))*time.Millisecond)
		}
	}
}

// step is one transaction.
func (p *producer) step(ctx context.Context, c *chainState) (err error) {
	// Not ctx: a transaction that was begun is completed.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	conn, err := p.pool.Conn(work)
	if err != nil {
		p.counts.errors.Add(1)
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(work, nil)
	if err != nil {
		p.counts.errors.Add(1)
		return err
	}
	n := 1 + rand.IntN(3)
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = Entry{c.name, c.next + i, c.attempt, p.poison && oneIn(400)}
	}
	c.attempt++
	if err := p.write(work, tx, entries); err != nil {
		p.counts.errors.Add(1)
		settled := p.resolveUnknown(work, c)
		return errors.Join(err, settled, tx.Rollback())
	}
	switch {
	case oneIn(12):
		p.counts.rolledBack.Add(1)
		return tx.Rollback()
	case oneIn(150):
		p.counts.hungUp.Add(1)
		return p.disconnect(work, tx)
	}
	if err := tx.Commit(); err != nil {
		p.counts.unknown.Add(1)
		c.unknown = true
		return err
	}
	p.counts.commits.Add(1)
	c.next, c.unknown = c.next+n, false
	p.ledger.Acknowledged(c.name, c.next-1)
	return nil
}

// write enqueues the messages early, as applications should not, and writes the application's rows a
// while later.
func (p *producer) write(ctx context.Context, tx *sql.Tx, entries []Entry) error {
	msgs := make([]outbox.Message, len(entries))
	for i, e := range entries {
		msgs[i] = outbox.Message{Topic: topic, Key: e.Chain, Payload: e.encode()}
		if isFree(e.Chain) {
			msgs[i].Key = ""
			if oneIn(20) {
				msgs[i].AvailableAt = time.Now().Add(time.Duration(rand.IntN(300)) * time.Millisecond)
			}
		}
	}
	if err := outbox.Enqueue(ctx, p.tx(tx), msgs...); err != nil {
		return err
	}
	switch {
	case p.slow && oneIn(60):
		pause(ctx, time.Duration(100+rand.IntN(400))*time.Millisecond)
	case oneIn(3):
		pause(ctx, time.Duration(rand.IntN(15))*time.Millisecond)
	}
	for _, e := range entries {
		poison := 0
		if e.Poison {
			poison = 1
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (chain, n, attempt, poison) VALUES ('%s', %d, %d, %d)",
			p.record(), e.Chain, e.N, e.Attempt, poison))
		if err != nil {
			return err
		}
	}
	return nil
}

// resolveUnknown finds out whether a COMMIT of unknown outcome succeeded, after the next attempt has
// failed, possibly because it did.
func (p *producer) resolveUnknown(ctx context.Context, c *chainState) error {
	if !c.unknown {
		return nil
	}
	var last sql.NullInt64
	err := p.pool.QueryRowContext(ctx, fmt.Sprintf("SELECT max(n) FROM %s WHERE chain = '%s'", p.record(), c.name)).Scan(&last)
	if err != nil {
		return err
	}
	if int(last.Int64) >= c.next {
		c.next, c.unknown = int(last.Int64)+1, false
	}
	return nil
}

// disconnect closes the connection of a transaction, as the death of a process would: drivers do so
// when a statement's context ends.
func (p *producer) disconnect(ctx context.Context, tx *sql.Tx) error {
	if text, ok := sleeps[p.Engine]; ok {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if _, err := tx.ExecContext(ctx, text); err == nil {
			return errors.New("a statement of 100 ms took 1 ms")
		}
	}
	_ = tx.Rollback() // where there is a connection left
	return nil
}

// sleeps are statements that take a while: the server notices only at their end that its client is
// gone, and rolls back then. SQLite has no connection to close.
var sleeps = map[outboxctl.Engine]string{
	outboxctl.Postgres: "SELECT pg_sleep(0.1)", outboxctl.MySQL: "SELECT SLEEP(0.1)",
}

// topic is the topic of all messages.
const topic = "torture"
