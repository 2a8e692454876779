package postgres

import (
	"cmp"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A backendSession is a backend's session on the server: its settings, and how they are changed
// to those of another client.
type backendSession struct {
	b *backend

	set       *session.Set  // session parameters when the queue is empty
	app       string        // application_name in force
	startApp  string        // ... when the connection began
	replayErr *pgwire.Error // why a query of a replay failed, other than the last one
}

// in reports whether the session has these settings and this application name.
func (f *backendSession) in(set *session.Set, app string) bool { return f.set == set && f.app == app }

// prepare applies the given settings to a taken backend, which costs a round trip,
// and then calls then. Nothing may be sent behind the query before it is
// answered: if the server refuses the settings, a statement would run in those of
// another client. After an error the backend cannot be used any more.
func (f *backendSession) prepare(set *session.Set, app string, then func(err *pgwire.Error)) {
	from, had := f.set, f.app
	f.try(0, from, had, set, app, then)
}

// mostReplays is how often a replay is tried if a statement_timeout ends it.
const mostReplays = 10

// try is the nth attempt of prepare. A replay begins under the current statement_timeout:
// another client's, which the replay removes first, or the role's, which weir does not
// know. If that timeout ends the replay, the next attempt removes it by a separate query.
func (f *backendSession) try(n int, from *session.Set, had string, set *session.Set, app string, then func(err *pgwire.Error)) {
	b := f.b
	b.Held = true
	l := b.p.l
	f.set, f.app = from, had
	f.replayErr = nil
	if n > 0 {
		b.ask(liftTimeout, f.part)
	}
	u := f.ensure(set, app, n > 0)
	if u == nil { // another set with the same content
		u = b.ask("", nil)
	}
	u.done = func(u *unit) {
		err := cmp.Or(f.replayErr, u.err)
		again := err != nil && err.Code == pgwire.CodeQueryCanceled && n < mostReplays && !b.s.Closed
		if err != nil && !again {
			b.Doomed = true
		}
		l.Post(func() { // when the answer has been processed
			if again && !b.s.Closed {
				f.try(n+1, from, had, set, app, then)
				return
			}
			b.Held = false
			if err == nil && b.s.Closed { // right after the answer
				err = pgwire.NewError(pgwire.CodeConnectionFailure, "weir: the connection to the server was lost")
			}
			then(err)
		})
	}
}

// part records the error of a query of a replay that is not its last.
func (f *backendSession) part(u *unit) {
	if f.replayErr == nil {
		f.replayErr = u.err
	}
}

// refused is the error for clients whose settings the server has refused.
func refused(err *pgwire.Error) *pgwire.Error {
	e := pgwire.NewError(pgwire.CodeConnectionFailure, "weir could not restore the session settings on another backend: %s", err.Message)
	e.Detail = "The server said SQLSTATE " + err.Code + "."
	return e
}

// ensureFor is ensure for a client that will own the backend: its application
// name is set, too.
func (f *backendSession) ensureFor(c *client) *unit {
	return f.ensureAs(c.set, f.appFor(c.app))
}

// appFor is the application name for a client that asked for name: if that is empty,
// it is the server's default.
func (f *backendSession) appFor(name string) string {
	if name == "" {
		return f.startApp
	}
	return name
}

// ensureAs returns the query that it sent, or nil if none was needed.
func (f *backendSession) ensureAs(set *session.Set, app string) *unit {
	f.replayErr = nil
	return f.ensure(set, app, false)
}

// ensure is ensureAs; lifted: statement_timeout may have been removed.
func (f *backendSession) ensure(set *session.Set, app string, lifted bool) *unit {
	b := f.b
	queries := []string{""}
	from := f.set
	if from != set {
		queries = replay(from, set)
		f.set = set
	}
	last := len(queries) - 1
	if app != f.app {
		queries[last] += "SELECT pg_catalog.set_config('application_name', " + anyLiteral(app) + ", false); "
		f.app = app
	}
	if _, has := from.Get(timeoutName); has && !lifted && queries[0] != "" {
		queries[0], lifted = liftTimeout+"; "+queries[0], true
	}
	queries[last] += timeout(from, set, lifted)
	if queries[last] == "" {
		return nil
	}
	b.p.Stats.Replays++
	as := b.p.key.asLogin()
	for _, sql := range queries[:last] {
		b.ask(as+sql, f.part)
	}
	return b.ask(as+queries[last], func(u *unit) {
		if f.replayErr != nil {
			u.err = f.replayErr
		}
		if u.err == nil {
			return
		}
		// The session's state is now unknown: no client may use it.
		b.Doomed = true
		switch c := b.owner; {
		case c == nil, !c.login.greeted && b.died(u.err): // see backendGone
		case !c.login.greeted:
			f := *u.err // as the server would have refused the startup packet
			f.Severity, f.SeverityRaw = "FATAL", "FATAL"
			c.fatal(&f)
		default:
			c.fatal(pgwire.NewFatal(pgwire.CodeConnectionFailure,
				"weir could not restore the session settings on another backend: %s", u.err.Message))
		}
	})
}
