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

// A roleQuerier asks, on a loop, about those who log in there. It has a connection of the
// lookups', and asks on it about one group after the other: what comes while a group is
// under way crosses with the next, and guests of one user and database share a question,
// which is asked when all of them have come. Where it cannot ask or gets no answer, the
// guests go elsewhere and are asked about there.
type roleQuerier struct {
	l    *loop
	lk   *lookup // nil while there is no connection; its Conn is sock
	sock *netloop.Sock

	waiting []*roleQuestion // of the next group, in order
	asked   []*roleQuestion // under way
	sent    time.Duration
	lending bool // a connection is on its way

	// last is whom the last login was as. Who connects is likely to be the same, and is
	// asked about at once, before it has said who it is, if luck, which counts how often
	// that was right lately, is above 0.
	last poolKey
	luck int
	// recalls tells that the last login was decided by what the server had said before.
	recalls bool
}

// A roleQuestion asks about a user and a database.
type roleQuestion struct {
	key    poolKey
	guests []*pendingLogin
	asked  time.Time

	answer roleStatus
	done   bool  // there is one
	err    error // why there is none
	second bool  // the auth query is being answered
	rows   int   // of the present answer
}

// askerPatience is how long an answer may take before the guests go elsewhere, where
// more connections are asked on.
const askerPatience = time.Second

const (
	// earlyKeep is how long a client that was asked about when it connected may take to
	// say who it is before it is asked about again.
	earlyKeep = 100 * time.Millisecond
	// mostLuck bounds what luck counts, so that it can turn.
	mostLuck = 8
)

// expect asks about the user and the database that a guest is likely to log in as, when
// it connects: the answer is there, or not far, when it has said so.
func (a *roleQuerier) expect(g *pendingLogin) {
	if a.recalls && a.l.srv.lookups.recent.get(a.last, a.l.cfg.LoginCheckInterval) != nil {
		return // as will be this one
	}
	if a.luck > 0 && a.lk != nil && a.serves() {
		g.early, g.came = a.about(a.last), a.l.Now
	}
}

// ask asks about a guest, whose turn comes when there is an answer. Without a connection
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
	q.guests = append(q.guests, g)
}

// recall is ask for a guest about whom the server need not be asked; nil if it has to be.
func (a *roleQuerier) recall(g *pendingLogin) *roleStatus {
	st := g.loginAttempt.recall()
	if st != nil {
		a.recalls = true
		a.was(g.key)
	}
	return st
}

// was notes whom a login is as.
func (a *roleQuerier) was(key poolKey) {
	if a.last != key {
		a.last, a.luck = poolKey{database: strings.Clone(key.database), user: strings.Clone(key.user)}, max(a.luck-2, -mostLuck)
	} else {
		a.luck = min(a.luck+1, mostLuck)
	}
}

// about returns the question of the next group about a user and a database.
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

// tell has a guest's turn come, with the answer.
func (q *roleQuestion) tell(g *pendingLogin) { g.Then(func() { g.known(&q.answer) }) }

// serves reports whether the connection is still to be asked on.
func (a *roleQuerier) serves() bool {
	cfg := a.l.srv.cfg()
	return a.lk.query == cfg.AuthQuery && time.Since(a.lk.born) < core.LookupLife && a.l.srv.Monitor.Goes(a.lk.endpoint)
}

// borrow gets a connection of the lookups' that is idle, soon.
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
	sock.Suspends(false) // who logs in to the console is asked for all the while
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
			out = appendQuestion(out, stmtStanding, inBinary, q.key.user, q.key.database)
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

// message takes one message of the server; false if there is none to expect.
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
			return false // it is on its way out
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

// row takes the row of an answer.
func (a *roleQuerier) row(q *roleQuestion, row [][]byte) {
	q.rows++
	if q.second {
		if err := q.answer.found(row); err != nil {
			q.err = err
		}
		return
	}
	st, err := a.l.srv.lookups.standing(a.lk, row)
	if q.answer = st; err != nil {
		q.err = err
	}
}

// ready is the end of an answer.
func (a *roleQuerier) ready(q *roleQuestion) {
	switch {
	case q.rows > 0:
	case q.second:
		if err := q.answer.found(nil); err != nil {
			q.err = err
		}
	case q.err == nil:
		q.err = errNoStanding
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
	for _, g := range q.guests {
		if !g.Gone {
			q.tell(g)
		}
	}
}

var errNoStanding = errors.New("the question for a role's standing was not answered")

// fallBack has the guests of a question asked about elsewhere.
func (q *roleQuestion) fallBack() {
	for _, g := range q.guests {
		if !g.Gone {
			g.Then(g.notKnown)
		}
	}
}

// OnClosed implements netloop.Handler.
func (a *roleQuerier) OnClosed(error) {
	a.lk, a.sock = nil, nil
	a.l.srv.lookups.recent.forget() // the server may be another one next time
	a.giveUp()
}

// giveUp has everyone asked about elsewhere.
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

// tick ends a connection that does not answer, or has not been needed for long.
func (a *roleQuerier) tick() {
	patience := core.LookupKeep
	if len(a.asked) > 0 {
		patience = askerPatience
	}
	if a.lk != nil && a.l.Now-a.sent > patience {
		a.close()
	}
}
