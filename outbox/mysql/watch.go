package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

// watcher observes the server's transactions for one lease, in a session of its own.
type watcher struct {
	mu     sync.Mutex // guards what follows: Close is concurrent
	closed bool
	c      *session
	open   *mark     // the mark for which the session's transaction was begun
	next   time.Time // do not query before: the server would show an old copy
	wait   time.Duration
}

// trxCacheTime is how long INNODB_TRX must not be read before the server makes a new copy.
// Several sessions that read it prevent new copies for each other, so they wait for random and,
// while that fails, longer times.
const (
	trxCacheTime = 105 * time.Millisecond
	maxWait      = time.Second
)

// Mark implements [outbox.Lease].
func (l *lease) Mark(ctx context.Context) (outbox.Mark, error) {
	if err := l.deposed(); err != nil {
		return nil, l.fail("mark", err)
	}
	if !l.v.process {
		return newMark(time.Now(), nil), nil
	}
	l.watcher.mu.Lock()
	defer l.watcher.mu.Unlock()
	m, err := l.watcher.mark(ctx, l)
	if err != nil {
		l.watcher.close()
		return nil, l.fail("mark", err)
	}
	return m, nil
}

// Settled implements [outbox.Lease]. It does not wait: it returns false until the server shows a
// new copy.
func (l *lease) Settled(ctx context.Context, moment outbox.Mark) (bool, error) {
	if err := l.deposed(); err != nil {
		return false, l.fail("ask for transactions of", err)
	}
	m, ok := moment.(*mark)
	if !ok {
		return false, l.fail("ask for transactions of", fmt.Errorf("a mark of another store: %T", moment))
	}
	if !l.v.process {
		return time.Since(m.at) > l.s.opts.MaxTxAge, nil
	}
	l.watcher.mu.Lock()
	defer l.watcher.mu.Unlock()
	settled, err := l.watcher.settled(ctx, l, m)
	if err != nil {
		l.watcher.close()
		return false, l.fail("ask for transactions of", err)
	}
	return settled, nil
}

// mark reads the process list and then begins a read-write transaction. Its number, once the
// server shows it, separates transactions that began before from those that began after.
func (w *watcher) mark(ctx context.Context, l *lease) (*mark, error) {
	if err := w.connect(ctx, l); err != nil {
		return nil, err
	}
	if w.open != nil { // for a mark that was never checked
		if err := w.end(ctx); err != nil {
			return nil, err
		}
	}
	at := time.Now()
	executing, err := w.sessions(ctx, l.v)
	if err != nil {
		return nil, err
	}
	m := newMark(at, executing)
	return m, w.begin(ctx, l, m)
}

func (w *watcher) connect(ctx context.Context, l *lease) (err error) {
	if w.closed {
		return outbox.ErrDeposed
	}
	if w.c == nil {
		w.c, err = l.sessions(ctx)
	}
	return err
}

// begin starts a transaction and makes it read-write by a locking read that finds no row.
func (w *watcher) begin(ctx context.Context, l *lease, m *mark) error {
	if err := w.c.exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	w.open = m
	return w.c.exec(ctx, l.s.sql("SELECT 1 FROM {lease} WHERE shard = -1 FOR UPDATE"))
}

func (w *watcher) end(ctx context.Context) error {
	w.open = nil
	return w.c.exec(ctx, "ROLLBACK")
}

// close ends the session and its transaction.
func (w *watcher) close() {
	if w.c != nil {
		w.c.discard()
	}
	w.c, w.open = nil, nil
}

// finish closes the watcher for good.
func (w *watcher) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.close()
}

func (w *watcher) settled(ctx context.Context, l *lease, m *mark) (bool, error) {
	now := time.Now()
	if now.Before(w.next) {
		return false, nil
	}
	if err := w.connect(ctx, l); err != nil {
		return false, err
	}
	if w.open == nil {
		if err := w.begin(ctx, l, nil); err != nil {
			return false, err
		}
	}
	k := &observation{at: now}
	var err error
	if k.executing, err = w.sessions(ctx, l.v); err != nil {
		return false, err
	}
	own, err := w.transactions(ctx, k)
	if err != nil {
		return false, err
	}
	if own == 0 {
		w.wait = min(maxWait, max(2*w.wait, 20*time.Millisecond))
		w.next = time.Now().Add(trxCacheTime + rand.N(w.wait))
		if w.open != m {
			return false, w.end(ctx)
		}
		return false, nil
	}
	w.wait, w.next = 0, time.Now().Add(trxCacheTime)
	limit := uint64(0)
	if w.open == m {
		limit = own
	}
	delete(k.writing, own)
	return m.observe(k, limit), w.end(ctx)
}

// idle are the commands that insert no rows.
var idle = map[string]bool{"Sleep": true, "Daemon": true, "Binlog Dump": true, "Binlog Dump GTID": true}

// sessions returns the sessions that execute a statement, with the statement's number on
// MariaDB.
func (w *watcher) sessions(ctx context.Context, v *server) (map[int64]string, error) {
	query, command := "SHOW PROCESSLIST", 4
	if v.mariadb {
		query, command = "SELECT ID, USER, COMMAND, QUERY_ID FROM information_schema.PROCESSLIST", 2
	}
	out := map[int64]string{}
	err := w.c.scan(ctx, query, func(values []driver.Value) (bool, error) {
		id, _, err := integer(values[0])
		if err != nil {
			return false, err
		}
		user, err := text(values[1])
		if err != nil {
			return false, err
		}
		doing, err := text(values[command])
		if err != nil {
			return false, err
		}
		if id == w.c.id || idle[string(doing)] || string(user) == "system user" {
			return true, nil
		}
		out[id] = ""
		if v.mariadb {
			n, _, err := integer(values[3])
			out[id] = strconv.FormatInt(n, 10)
			return true, err
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at sessions: %w", err)
	}
	return out, nil
}

// maxTrx is above all numbers of read-write transactions. For read-only ones MySQL shows a higher
// number, an address, and MariaDB 0.
const maxTrx = 1 << 48

// transactions reads the read-write transactions into k and returns the number of the session's
// own; 0 means that the server showed an old or incomplete copy.
func (w *watcher) transactions(ctx context.Context, k *observation) (own uint64, err error) {
	k.writing = map[uint64]int64{}
	never := fmt.Sprintf("weir-%d-%016x", w.c.id, rand.Uint64())
	query := "SELECT trx_id, trx_mysql_thread_id, LOCATE('" + never + "', trx_query) FROM information_schema.INNODB_TRX"
	err = w.c.scan(ctx, query, func(values []driver.Value) (bool, error) {
		id, _, err := integer(values[0])
		if err != nil {
			return false, err
		}
		session, _, err := integer(values[1])
		if err != nil {
			return false, err
		}
		found, _, err := integer(values[2])
		if err != nil {
			return false, err
		}
		if id <= 0 || id >= maxTrx {
			return true, nil
		}
		k.writing[uint64(id)] = session
		if session == w.c.id && found > 0 {
			own = uint64(id)
		}
		return true, nil
	})
	if isError(err, errConvert) {
		return w.monitorTransactions(ctx, k, never)
	}
	if err != nil {
		return 0, fmt.Errorf("look at transactions: %w", err)
	}
	return own, nil
}

// monitorTransactions is transactions by InnoDB's monitor. It does not use the sessions in the
// report: any transaction may belong to a statement that has ended.
func (w *watcher) monitorTransactions(ctx context.Context, k *observation, never string) (own uint64, err error) {
	m, ok, err := w.c.monitor(ctx, never)
	if err != nil || !ok {
		return 0, err
	}
	k.writing = make(map[uint64]int64, len(m.ages))
	for id := range m.ages {
		k.writing[id] = 0
	}
	return m.own, nil
}
