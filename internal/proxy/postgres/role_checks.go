package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file lets the server decide about clients that weir itself has
// authenticated. Otherwise a warm pool would let them in without asking the server,
// whatever has changed: NOLOGIN, VALID UNTIL, another
// password, no CONNECT on the database, another pg_hba.conf.

// roleChecks let logins of one user and database that arrive while a question is
// in flight share the next one: a storm of logins costs one connection at a time, and
// no login is decided by an answer to a question that was asked before it. Safe for concurrent
// use.
type roleChecks struct {
	mu    sync.Mutex
	asked map[poolKey]*roleCheckPair // guarded by mu
}

// A roleCheckPair is the checks of one user and database: the one in flight, and the
// next one, nil if no login waits for it.
type roleCheckPair struct{ now, next *roleCheck }

// A roleCheck is one question to the server and, when answered is closed, its
// answer.
type roleCheck struct {
	answered chan struct{}
	expired  bool  // VALID UNTIL has passed
	err      error // the server's refusal, or why it could not be asked
}

// join returns a question to wait for that has not been asked yet, or, with mine, one that the
// caller must ask after before, if that is not nil, has been answered.
func (v *roleChecks) join(key poolKey) (q, before *roleCheck, mine bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asked == nil {
		v.asked = make(map[poolKey]*roleCheckPair)
	}
	t := v.asked[key]
	switch {
	case t == nil:
		q = &roleCheck{answered: make(chan struct{})}
		v.asked[key] = &roleCheckPair{now: q}
		return q, nil, true
	case t.next == nil:
		t.next = &roleCheck{answered: make(chan struct{})}
		return t.next, t.now, true
	}
	return t.next, nil, false
}

// begin makes the next question the one in flight: from now on, later logins wait
// for another one.
func (v *roleChecks) begin(key poolKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.asked[key]
	t.now, t.next = t.next, nil
}

// end answers the question in flight.
func (v *roleChecks) end(key poolKey, q *roleCheck) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t := v.asked[key]; t.next == nil {
		delete(v.asked, key)
	}
	close(q.answered)
}

// verifyWithServer asks the server whether it lets the user in, by logging in, unless it has done
// so before and nothing has changed since: see roleStatus. The connection is returned to be
// kept, if this login is the one that asked. byPassword means that the client has shown
// a password: VALID UNTIL applies only then, as in the server.
func (s *Server) verifyWithServer(ctx context.Context, key poolKey, st *roleStatus, byPassword bool) (*backendConn, error) {
	if e := st.refusal(key, byPassword); e != nil {
		return nil, e
	}
	if s.verdicts.granted(key, st, time.Now()) {
		return nil, nil
	}
	q, before, mine := s.roleChecks.join(key)
	var conn *backendConn
	if mine {
		if before != nil {
			<-before.answered // which takes no longer than a login may
			s.roleChecks.begin(key)
		}
		conn, q.expired, q.err = s.queryRoleStatus(ctx, key)
		if q.err != nil {
			s.verdicts.refute(key)
		} else if conn != nil {
			s.granted(key, st, conn)
		}
		s.roleChecks.end(key, q)
	}
	select {
	case <-q.answered:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err := q.err
	if err == nil && q.expired && byPassword {
		err = pgwire.NewFatal(pgwire.CodeInvalidPassword, "password authentication failed for user %q", key.user)
	}
	if err != nil && conn != nil {
		conn.close()
		conn = nil
	}
	return conn, err
}

// granted records that the server has let a user in, on a connection that was told how
// sessions now begin.
func (s *Server) granted(key poolKey, st *roleStatus, conn *backendConn) {
	if !s.verdicts.note(key, st, "", true, time.Now()) {
		return
	}
	key.role = conn.role
	for _, l := range s.Loops {
		l.Post(func() {
			if p := l.Pools[key]; p != nil {
				p.fresh(conn.params)
			}
		})
	}
}

// askedSQL asks what an administrator may have changed for a role that has
// connections.
var askedSQL = own(`SELECT r.rolcanlogin, pg_catalog.has_database_privilege(r.oid, d.oid, 'CONNECT') AND d.datallowconn,
 r.rolvaliduntil <= pg_catalog.now()
 FROM pg_catalog.pg_roles r, pg_catalog.pg_database d
 WHERE r.rolname = session_user AND d.datname = pg_catalog.current_database()`)

// queryRoleStatus logs in as the user, which covers everything that
// may have changed. If weir cannot, because it has no password or the server has
// no room, it asks on an existing connection. Only a refusal is an error;
// if there is no connection either, the login continues and waits for one.
func (s *Server) queryRoleStatus(ctx context.Context, key poolKey) (conn *backendConn, expired bool, err error) {
	if s.mayDial(key) {
		dialCtx, cancel := context.WithTimeout(ctx, s.cfg().ConnectTimeout)
		defer cancel()
		conn, expired, err = s.dialForRoleStatus(dialCtx, key)
		if err == nil {
			return conn, expired, nil
		}
		if refuses(err) {
			return nil, false, err
		}
	}
	row, asked, err := s.askWarm(ctx, key)
	switch {
	case err != nil && !lostIn(err):
		return nil, false, err
	case err != nil, !asked:
		return nil, false, nil
	case len(row) != 3 || string(row[0]) == "f":
		return nil, false, pgwire.NewFatal(pgwire.CodeInvalidAuthorization, "role %q is not permitted to log in", key.user)
	case string(row[1]) == "f":
		e := pgwire.NewFatal(pgwire.CodeInsufficientPrivilege, "permission denied for database %q", key.database)
		e.Detail = "User does not have CONNECT privilege."
		return nil, false, e
	}
	return nil, string(row[2]) == "t", nil
}

// refuses reports whether an error means that the server does not let the user in,
// rather than that it cannot just now.
func refuses(err error) bool {
	switch pgwire.CodeOf(err) {
	case pgwire.CodeInvalidPassword, pgwire.CodeInvalidAuthorization, pgwire.CodeInvalidDatabase, pgwire.CodeInsufficientPrivilege, pgwire.CodeObjectState,
		pgwire.CodeUndefinedFile: // a library that its sessions must load
		return true
	}
	return false
}

func (s *Server) dialForRoleStatus(ctx context.Context, key poolKey) (*backendConn, bool, error) {
	cfg := s.backendConfig(key)
	be, e, err := s.connect(ctx, cfg)
	if err != nil {
		if pgwire.CodeOf(err) == pgwire.CodeInvalidPassword {
			s.creds.Refuted(key.user, cfg.Keys)
		}
		return nil, false, err
	}
	row, err := queryOne(ctx, be.Conn, askedSQL)
	if err != nil {
		_ = be.Conn.Close()
		return nil, false, fmt.Errorf("query the status of role %q: %w", key.user, err)
	}
	conn, err := s.handOver(be, e, "")
	return conn, len(row) == 3 && string(row[2]) == "t", err
}

// askWarm asks on a connection of the pool; asked is false if it has none.
func (s *Server) askWarm(ctx context.Context, key poolKey) (row [][]byte, asked bool, err error) {
	answers := make(chan *unit, len(s.Loops))
	for _, l := range s.Loops {
		if err := l.Call(ctx, func() {
			p := l.Pools[key]
			if asked || p == nil || len(p.Backends) == 0 {
				return
			}
			asked = true
			p.askIn(l.Settings.Empty(), askedSQL, 3, func(u *unit) {
				answers <- &unit{err: u.err, rows: u.rows}
			})
		}); err != nil {
			return nil, false, err
		}
	}
	if !asked {
		return nil, false, nil
	}
	select {
	case u := <-answers:
		if u.err != nil {
			return nil, true, u.err
		}
		if len(u.rows) == 0 {
			return nil, true, nil
		}
		return u.rows[0], true, nil
	case <-ctx.Done():
		return nil, true, fmt.Errorf("query the status of role %q: %w", key.user, ctx.Err())
	}
}
