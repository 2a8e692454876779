package postgres

import (
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A roleQuerier looks up, on a loop, the users who log in there. It has one of the lookups'
// connections, and asks on it about one group after the other: questions that arrive while a
// group is in flight are sent with the next one, and logins of one user and database share a
// question, which is asked after all of them have arrived. If it cannot ask or gets no answer,
// the logins continue on goroutines and ask there.
type roleQuerier struct {
	l    *loop
	lk   *lookup // nil while there is no connection; its Conn is sock
	sock *netloop.Sock

	waiting []*roleQuestion // of the next group, in order
	asked   []*roleQuestion // in flight
	sent    time.Duration
	lending bool // a connection has been requested

	// last is who logged in last. The next client is likely to be the same user, and is
	// asked about as soon as it connects, before it has said who it is, if luck is above 0: it
	// counts how often that was right lately.
	last poolKey
	luck int
	// recalls: the last login was decided by an earlier answer of the server.
	recalls bool
}

// A roleQuestion asks about a user and a database.
type roleQuestion struct {
	key    poolKey
	logins []*pendingLogin
	asked  time.Time

	answer roleStatus
	done   bool  // it has an answer
	err    error // why it has none
	second bool  // the auth query is being answered
	rows   int   // of the current answer
}

// askerPatience is how long an answer may take before the logins continue on goroutines, which
// ask on more connections.
const askerPatience = time.Second

const (
	// earlyKeep is how long a client that was asked about when it connected may take to
	// say who it is before it is asked about again.
	earlyKeep = 100 * time.Millisecond
	// mostLuck bounds luck, so that it can turn.
	mostLuck = 8
)

// expect asks about the user and database that a client is likely to log in as, when
// it connects, so that the answer is there when the client has said who it is.
func (a *roleQuerier) expect(g *pendingLogin) {
	if a.recalls && a.l.srv.lookups.recent.get(a.last, a.l.cfg.LoginCheckInterval) != nil {
		return // as this login will be
	}
	if a.luck > 0 && a.lk != nil && a.serves() {
		g.early, g.came = a.about(a.last), a.l.Now
	}
}

// ask asks about a client that logs in, whose turn comes when there is an answer. Without a connection
// it waits for the one that is idle, if there is: who went elsewhere meanwhile would find
// none, and open one more.
func (a *roleQuerier) ask(g *pendingLogin) {
	a.recalls = false
	a.was(g.key)
	if a.lk != nil && !a.serves() {
		a.close()
	}
	if a.lk == nil {
		a.borrow()
	}
	q := g.early
	if g.early = nil; q == nil || q.key != g.key || q.err != nil || a.l.Now-g.came > earlyKeep {
		q = a.about(g.key)
	}
	if q.done {
		q.tell(g)
		return
	}
	q.logins = append(q.logins, g)
}

// recall is ask for a login about which the server does not have to be asked; nil if it does.
func (a *roleQuerier) recall(g *pendingLogin) *roleStatus {
	st := g.loginAttempt.recall()
	if st != nil {
		a.recalls = true
		a.was(g.key)
	}
	return st
}

// was records who has logged in.
func (a *roleQuerier) was(key poolKey) {
	if a.last != key {
		a.last, a.luck = poolKey{database: strings.Clone(key.database), user: strings.Clone(key.user)}, max(a.luck-2, -mostLuck)
	} else {
		a.luck = min(a.luck+1, mostLuck)
	}
}

// about returns the next group's question about a user and a database.
func (a *roleQuerier) about(key poolKey) *roleQuestion {
	for _, q := range a.waiting {
		if q.key == key {
			return q
		}
	}
	q := &roleQuestion{key: key}
	a.waiting = append(a.waiting, q)
	return q
}

// tell has the turn of a login come, with the answer.
func (q *roleQuestion) tell(g *pendingLogin) { g.Then(func() { g.known(&q.answer) }) }

// serves reports whether the connection can still be used.
func (a *roleQuerier) serves() bool {
	cfg := a.l.srv.cfg()
	return a.lk.query == cfg.AuthQuery && time.Since(a.lk.born) < core.LookupLife && a.l.srv.Monitor.Goes(a.lk.endpoint)
}

// borrow requests an idle connection of the lookups'.
func (a *roleQuerier) borrow() {
	if a.lending {
		return
	}
	a.lending = true
	s := a.l.srv
	s.Background.Go(func() {
		lk := s.lookups.idle.Take(s.Monitor.Goes)
		fd := -1
		if lk != nil && lk.answers.Buffered() == 0 {
			var err error
			if fd, err = netloop.Detach(s.DialCtx, lk.Conn, &s.Background); err != nil {
				fd = -1
			}
		}
		if lk != nil && fd < 0 {
			lk.close()
		}
		if !a.l.Post(func() { a.lent(lk, fd) }) && fd >= 0 {
			_ = unix.Close(fd)
		}
	})
}

// lent takes over a connection, if there is one.
func (a *roleQuerier) lent(lk *lookup, fd int) {
	a.lending = false
	if fd < 0 {
		a.giveUp()
		return
	}
	sock, err := a.l.Watch(fd, a)
	if err != nil {
		_ = unix.Close(fd)
		a.giveUp()
		return
	}
	sock.Suspends(false) // logins to the console continue during SUSPEND
	a.lk, a.sock, a.sent = lk, sock, a.l.Now
	if !a.serves() || a.l.Draining() {
		a.close()
	}
}

// settle sends the next group.
func (a *roleQuerier) settle() {
	if len(a.asked) > 0 || len(a.waiting) == 0 || a.lk == nil {
		return
	}
	n := min(len(a.waiting), lookupGroup)
	a.asked = append(a.asked, a.waiting[:n]...)
	a.waiting = append(a.waiting[:0], a.waiting[n:]...)
	a.sent = a.l.Now
	out, now := a.sock.OutBuf(), time.Now()
	for _, q := range a.asked {
		q.asked = now
		if !a.lk.blind {
			out = appendQuestion(out, stmtRoleStatus, inBinary, q.key.user, q.key.database)
		}
		q.second = a.lk.blind
		if a.lk.query != "" {
			out = appendQuestion(out, stmtSecret, nil, q.key.user)
		}
	}
	a.sock.Out = out
	a.sock.Touch()
}

// OnData implements netloop.Handler.
func (a *roleQuerier) OnData(p []byte) int {
	i := 0
	for {
		typ, n, ok := pgwire.Peek(p[i:])
		if !ok || i+n > len(p) {
			return i
		}
		if n < pgwire.HeaderLen || !a.message(typ, p[i+pgwire.HeaderLen:i+n]) {
			a.sock.Close(pgwire.ErrMalformed)
			return len(p)
		}
		i += n
	}
}

// message processes one message of the server; false if none was expected.
func (a *roleQuerier) message(typ byte, body []byte) bool {
	var q *roleQuestion
	if len(a.asked) > 0 {
		q = a.asked[0]
	}
	switch typ {
	case pgwire.ServerDataRow:
		if q == nil {
			return false
		}
		row, err := pgwire.ParseDataRow(body, nil)
		if err != nil {
			return false
		}
		a.row(q, row)
	case pgwire.ServerError:
		e, err := pgwire.ParseError(body)
		if q == nil || err != nil {
			return false // it is being closed
		}
		q.err = e
	case pgwire.ServerReady:
		if q == nil {
			return false
		}
		a.ready(q)
	}
	return true
}

// row processes the row of an answer.
func (a *roleQuerier) row(q *roleQuestion, row [][]byte) {
	q.rows++
	if q.second {
		if err := q.answer.found(row); err != nil {
			q.err = err
		}
		return
	}
	st, err := a.l.srv.lookups.roleStatus(a.lk, row)
	if q.answer = st; err != nil {
		q.err = err
	}
}

// ready handles the end of an answer.
func (a *roleQuerier) ready(q *roleQuestion) {
	switch {
	case q.rows > 0:
	case q.second:
		if err := q.answer.found(nil); err != nil {
			q.err = err
		}
	case q.err == nil:
		q.err = errNoRoleStatus
	}
	if q.rows = 0; !q.second && a.lk.query != "" {
		q.second = true
		return
	}
	a.asked = append(a.asked[:0], a.asked[1:]...)
	if q.err != nil {
		q.fallBack()
		return
	}
	q.answer.asked, q.answer.heard, q.done = q.asked, time.Now(), true
	a.l.srv.lookups.recent.put(q.key, &q.answer)
	for _, g := range q.logins {
		if !g.Gone {
			q.tell(g)
		}
	}
}

var errNoRoleStatus = errors.New("query the status of a role: the server did not answer")

// fallBack moves the logins of a question to goroutines, which ask again.
func (q *roleQuestion) fallBack() {
	for _, g := range q.logins {
		if !g.Gone {
			g.Then(g.notKnown)
		}
	}
}

// OnClosed implements netloop.Handler.
func (a *roleQuerier) OnClosed(error) {
	a.lk, a.sock = nil, nil
	a.l.srv.lookups.recent.forget() // the next server may be another one
	a.giveUp()
}

// giveUp moves all logins to goroutines, which ask again.
func (a *roleQuerier) giveUp() {
	for _, q := range append(a.asked, a.waiting...) {
		q.err = netloop.ErrStopped
		q.fallBack()
	}
	a.asked, a.waiting = nil, nil
}

// OnDrained implements netloop.Handler.
func (a *roleQuerier) OnDrained() {}

// close ends the connection, if there is one.
func (a *roleQuerier) close() {
	if a.sock != nil {
		a.sock.Close(netloop.ErrStopped)
	}
}

// tick closes a connection that does not answer, or was not needed for long.
func (a *roleQuerier) tick() {
	patience := core.LookupKeep
	if len(a.asked) > 0 {
		patience = askerPatience
	}
	if a.lk != nil && a.l.Now-a.sent > patience {
		a.close()
	}
}
