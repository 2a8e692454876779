package postgres

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// told is what a client has been sent.
func (st *stage) told(c *client) string {
	c.s.Flush()
	buf := make([]byte, 1<<16)
	n, _ := unix.Read(st.others[slices.Index(st.clients, c)], buf)
	return string(buf[:max(0, n)])
}

// Members of a lane that have waited long enough for a backend are refused, and those that
// came after them wait on.
func TestMembersOfALaneExpireEachByItsOwnTime(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		st.p.Claim(st.b) // somebody has it
		const sql = "/* batch */ UPDATE t SET k = 1 WHERE k = 2"
		long, fresh := st.client(pgwire.AppendQuery(nil, sql)), st.client(pgwire.AppendQuery(nil, sql))
		for _, c := range st.clients {
			_ = st.told(c) // its greeting
		}
		if len(st.p.Excl) != 1 || st.p.Excl[0].Lane == nil {
			t.Errorf("a lane does not wait: %+v", st.p.Excl)
			return
		}
		ln := st.p.Excl[0].Lane
		u, ok := ln.Find(func(u *unit) bool { return u.c == long })
		if !ok || ln.Q.Len() != 2 {
			t.Errorf("%d writes wait", ln.Q.Len())
			return
		}
		u.lanedAt -= time.Hour
		st.p.Excl[0].Since -= time.Hour
		refuse := func(after time.Duration) {
			st.p.failWaiting(after, pgwire.NewError(pgwire.CodeTooManyConnections, "too long"))
		}
		refuse(time.Minute)
		if got := st.told(long); !strings.Contains(got, "too long") {
			t.Errorf("who has waited for an hour was told %q", got)
		}
		if got := st.told(fresh); got != "" {
			t.Errorf("who has just come was told %q", got)
		}
		if len(st.p.Excl) != 1 || ln.Q.Len() != 1 || st.p.Stats.Timeouts != 1 {
			t.Errorf("%d wait, %d of them in the lane, after %d timeouts", len(st.p.Excl), ln.Q.Len(), st.p.Stats.Timeouts)
		}
		refuse(0)
		if got := st.told(fresh); !strings.Contains(got, "too long") {
			t.Errorf("the other one was told %q", got)
		}
		if len(st.p.Excl) != 0 || ln.Queued {
			t.Errorf("%d wait, the empty lane: %v", len(st.p.Excl), ln.Queued)
		}
	})
}

// If the server refuses the user, its clients do not wait for others to join their lane.
func TestMembersOfALaneHearAtOnceThatTheServerRefuses(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		st.p.Claim(st.b) // somebody has it
		c := st.client(pgwire.AppendQuery(nil, "/* batch:1000 */ UPDATE t SET k = 1 WHERE k = 2"))
		_ = st.told(c) // its greeting
		refuse := func(after time.Duration) {
			st.p.failWaiting(after, pgwire.NewError(pgwire.CodeInvalidPassword, "no such user"))
		}
		refuse(time.Nanosecond)
		if got := st.told(c); got != "" {
			t.Errorf("who waits for others was told %q", got)
		}
		refuse(0)
		if got := st.told(c); !strings.Contains(got, "no such user") {
			t.Errorf("who waits for others was told %q", got)
		}
	})
}

// A write that is cancelled while it waits in a lane leaves the client's names of
// statements free.
func TestCancelledMemberOfALaneLeavesNoName(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		st.p.Claim(st.b) // somebody has it
		c := st.client(ext("s", "/* batch */ UPDATE t SET k = 1 WHERE k = 2"), pgwire.AppendSync(nil))
		_ = st.told(c) // its greeting
		if !slices.ContainsFunc(st.p.Excl, func(w waiter) bool { return w.Lane != nil }) || c.stmts.byName["s"] == nil {
			t.Errorf("no prepared write waits in a lane: %+v", st.p.Excl)
			return
		}
		c.cancel(func() {})
		if got := st.told(c); !strings.Contains(got, "user request") || c.stmts.byName["s"] != nil {
			t.Errorf("a statement that was not parsed is prepared, the client was told %q", got)
		}
	})
}

// A lock_timeout that weir has set is no client's error, however often the statement was
// tried; one of the client's own is.
func TestLockTimeoutsOfWeirAreRunAgain(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		c := st.client()
		ln := st.p.lanes.solo(c.set, 0)
		timedOut := &pgwire.Error{Code: pgwire.CodeLockNotAvailable, Routine: "ProcessInterrupts"}
		for _, u := range []*unit{
			{c: c, err: timedOut, bound: time.Millisecond},
			{c: c, err: timedOut, bound: time.Millisecond, retries: 200},
			{c: c, err: &pgwire.Error{Code: pgwire.CodeLockNotAvailable}, bound: time.Millisecond},
		} {
			if waited := u.waited; !ln.again(u) || u.waited != waited+u.bound {
				t.Errorf("%+v is not run again, or has waited for %v", u.err, u.waited)
			}
		}
		for _, u := range []*unit{
			{c: c, err: timedOut},
			{c: c, err: &pgwire.Error{Code: pgwire.CodeLockNotAvailable, Routine: "heap_lock_tuple"}, bound: time.Millisecond},
		} {
			if ln.again(u) {
				t.Errorf("%+v of the client's own is run again", u.err)
			}
			if again, over := u.turnOver(u.err); again || over {
				t.Errorf("%+v of the client's own is the end of a turn", u.err)
			}
		}
	})
}
