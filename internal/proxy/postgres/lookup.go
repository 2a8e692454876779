package postgres

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/netwire"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// This file has the connections on which weir looks up users who log in. Questions that arrive
// while others are in flight are sent together, so that a storm of logins
// costs the server few connections and few round trips.

const (
	// maxLookups bounds these connections: anyone who can reach weir can make it ask,
	// without having proved anything.
	maxLookups = 4
	// lookupGroup is the maximum of questions that are sent together. They and their answers
	// fit into the buffers of a socket, so neither side blocks.
	lookupGroup = 32
	// lookupPatience bounds the answers to them.
	lookupPatience = 15 * time.Second
	// lookupHurry bounds the wait if the login can continue without an answer.
	lookupHurry = 5 * time.Second
	// lookupPause is how long weir does not ask after the server has refused its login for
	// that.
	lookupPause = time.Minute
)

// lookups are those connections. Safe for concurrent use.
type lookups struct {
	srv       *Server
	questions *batch.Batcher[struct{}, poolKey, roleStatus]
	recent    loginCache
	idle      *core.Lookups[*lookup]
	shared    bool // with other servers

	mu      sync.Mutex
	refused time.Time // guarded by mu: when the server last refused weir's login
	why     error     // guarded by mu
	server  string    // guarded by mu: start time of the server that last answered
	loaded  uint64    // guarded by mu: the last time at which one of its sessions read its files
}

// A lookup is one connection on which weir looks up users who log in.
type lookup struct {
	*pgwire.Backend
	endpoint upstream.Endpoint
	answers  *bufio.Reader
	blind    bool   // the server cannot answer weir's own question
	sees     bool   // it may read the stored passwords
	server   string // when the server started
	query    string // the auth query
	born     time.Time
}

func (l *lookup) close() { _ = l.Conn.Close() }

func newLookups(srv *Server) *lookups {
	l := &lookups{srv: srv, idle: srv.cfg().lookups}
	if l.shared = l.idle != nil; !l.shared {
		l.idle = core.NewLookups((*lookup).close)
	}
	l.questions = batch.New(batch.Options[poolKey]{Config: batch.Config{MaxItems: lookupGroup, MaxLanes: maxLookups, NoHold: true}}, l.askAll)
	return l
}

// close closes the connections; those in use when their questions are answered.
func (l *lookups) close() {
	if !l.shared {
		l.idle.Close()
	}
	_ = l.questions.Close() // later questions get the error from Submit
}

// barred returns why the server refused weir's login, if that was recent.
func (l *lookups) barred() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.refused) < lookupPause {
		return l.why
	}
	return nil
}

// bar records that the server refuses weir's login; it reports whether that is
// new.
func (l *lookups) bar(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.why == nil
	l.refused, l.why = time.Now(), err
	return news
}

// errNobodyToAsk means that weir cannot look up users: it has no user of its own, or the
// server refuses that one.
var errNobodyToAsk = errors.New("weir cannot ask the server about those who log in")

// nobody is why weir cannot ask at all, nil if it may try.
func (l *lookups) nobody() error {
	switch cfg := l.srv.cfg(); {
	case cfg.authUser() == "":
		return errNobodyToAsk
	case cfg.AuthQuery == "":
		return l.barred()
	}
	return nil
}

// askable returns the errors for which a login waits until the server can be asked;
// if the server itself can check the login, that waits instead.
func (s *Server) askable() func(error) bool {
	if s.cfg().AuthQuery == "" {
		return isAway
	}
	return hasLeft
}

// waitsFor is away if the login cannot continue without an answer, nil if it can.
func (a *loginAttempt) waitsFor(away func(error) bool) func(error) bool {
	if a.held {
		return nil
	}
	return away
}

// ask asks the server about a role and a database. While away returns true for an error, it
// waits for the server and asks again, unless away is nil. The
// error is errNobodyToAsk if weir cannot ask at all.
func (l *lookups) ask(ctx context.Context, key poolKey, away func(error) bool) (*roleStatus, error) {
	if err := l.nobody(); err != nil {
		return nil, err
	}
	var st roleStatus
	asked := time.Now()
	try := func(ctx context.Context) (err error) {
		st, err = l.questions.Submit(ctx, struct{}{}, key)
		return err
	}
	var err error
	if away != nil {
		err = l.srv.patiently(ctx, away, func() error { return try(ctx) })
	} else if back, why := l.srv.away.waiting(); back != nil {
		err = why
	} else {
		hurry, cancel := context.WithTimeout(ctx, lookupHurry)
		defer cancel()
		err = try(hurry)
	}
	if err != nil {
		return nil, err
	}
	st.asked, st.heard = asked, time.Now()
	l.recent.put(key, &st)
	return &st, nil
}

// askAll answers a group of questions.
func (l *lookups) askAll(_ struct{}, keys []poolKey, results []batch.Result[roleStatus]) error {
	ctx, cancel := context.WithTimeout(l.srv.DialCtx, lookupPatience)
	defer cancel()
	if lk := l.idle.Take(l.srv.Monitor.Goes); lk != nil && lk.query == l.srv.cfg().AuthQuery {
		err := l.askOn(ctx, lk, keys, results)
		if err == nil || ctx.Err() != nil {
			return err
		}
		// The connection was lost while it was idle.
	} else if lk != nil {
		lk.close()
	}
	lk, err := l.openLookup(ctx)
	if err != nil {
		return err
	}
	return l.askOn(ctx, lk, keys, results)
}

// openLookup opens another connection, and prepares the questions there.
func (l *lookups) openLookup(ctx context.Context) (*lookup, error) {
	cfg := l.srv.cfg()
	to := cfg.Postgres
	if user := cfg.authUser(); user != to.User {
		to.User, to.Password = user, ""
	}
	if cfg.AuthDatabase != "" {
		to.Database = cfg.AuthDatabase
	}
	if to.Password == "" {
		to.Password, to.Keys = l.srv.creds.of(to.User)
	}
	to.Timeout = cfg.ConnectTimeout
	be, e, err := l.srv.connect(ctx, to)
	switch {
	case refuses(err) || errors.Is(err, pgwire.ErrNoPassword):
		err = fmt.Errorf("%w, as %q: %w", errNobodyToAsk, to.User, err)
		refused := pgwire.CodeOf(err) == pgwire.CodeInvalidPassword
		switch first := l.bar(err); {
		case first && refused:
			l.srv.Log.Warn("the server refuses weir's own login: check the user and the password that weir was given", "user", to.User, "error", err)
		case first && cfg.AuthQuery == "":
			l.srv.Log.Info("logins are relayed to the server: weir has no user there whom it could ask about others", "error", err)
		}
		return nil, err
	case err != nil:
		return nil, err
	}
	l.bar(nil)
	lk := &lookup{Backend: be, endpoint: e, answers: bufio.NewReader(be.Conn), query: cfg.AuthQuery, born: time.Now()}
	if err := lk.prepare(ctx); err != nil {
		lk.close()
		return nil, err
	}
	return lk, nil
}

// beginSQL makes the names in questions refer to the server's own objects only.
const beginSQL = "SET search_path = pg_catalog, pg_temp"

// seesSQL asks whether the session may read what is stored of passwords.
const seesSQL = "SELECT pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT')"

// startedSQL asks when the server started.
const startedSQL = "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::pg_catalog.text"

// The prepared questions.
const (
	stmtRoleStatus = "weir_role_status"
	stmtSecret     = "weir_secret"
)

// prepare prepares the questions. A server other than PostgreSQL may not be able to answer
// weir's own.
func (l *lookup) prepare(ctx context.Context) error {
	release := netwire.Bound(ctx, l.Conn, 0)
	return release(l.parse())
}

func (l *lookup) parse() error {
	run := func(msg []byte) (row [][]byte, err error) {
		if _, err := l.Conn.Write(pgwire.AppendSync(msg)); err != nil {
			return nil, err
		}
		return readRow(l.answers)
	}
	for _, sql := range []string{beginSQL, startedSQL, seesSQL} {
		out := pgwire.AppendBind(pgwire.AppendParse(nil, "", sql, nil), "", "", new(pgwire.BindArgs))
		row, err := run(pgwire.AppendExecute(out, "", 1))
		if err != nil && pgwire.CodeOf(err) == "" {
			return err
		}
		if len(row) != 1 {
			continue
		}
		switch sql {
		case startedSQL:
			l.server = string(row[0])
		case seesSQL:
			l.sees = string(row[0]) == "t"
		}
	}
	_, err := run(pgwire.AppendParse(nil, stmtRoleStatus, roleStatusQuery(l.sees), nil))
	if l.blind = err != nil; l.blind && (l.query == "" || pgwire.CodeOf(err) == "") {
		return err
	}
	if l.query != "" {
		if _, err := run(pgwire.AppendParse(nil, stmtSecret, l.query, nil)); err != nil {
			return fmt.Errorf("prepare the auth query: %w", err)
		}
	}
	return nil
}

// roleStatus parses the answer to the query for a role status.
func (l *lookups) roleStatus(lk *lookup, row [][]byte) (roleStatus, error) {
	if len(row) == statusColumns && len(row[statusLoaded]) == 8 {
		row[statusLoaded] = l.lastLoad(lk.server, row[statusLoaded])
	}
	return parseRoleStatus(row, lk.sees, lk.server)
}

// lastLoad is the last time at which any session read the server's files, given that of
// one session: each session reads them by itself after a reload, and the answers of several
// connections must be equal if nothing has changed.
func (l *lookups) lastLoad(server string, load []byte) []byte {
	at := binary.BigEndian.Uint64(load)
	l.mu.Lock()
	defer l.mu.Unlock()
	if server != l.server {
		l.server, l.loaded = server, at
	}
	l.loaded = max(l.loaded, at)
	return binary.BigEndian.AppendUint64(nil, l.loaded)
}

// askOn asks a group of questions on a connection, and then keeps or closes it. Each
// has a Sync of its own, so that none fails because of another. The error is that of the
// connection.
func (l *lookups) askOn(ctx context.Context, lk *lookup, keys []poolKey, results []batch.Result[roleStatus]) (err error) {
	here, cancel := l.srv.Monitor.While(ctx, lk.endpoint)
	defer cancel()
	stop := context.AfterFunc(here, func() { _ = lk.Conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		switch {
		case !stop():
			lk.close()
			if err != nil {
				err = context.Cause(here)
			}
		case err != nil:
			lk.close()
		default:
			l.idle.Keep(lk, lk.endpoint, lk.born)
		}
	}()
	var out []byte
	for _, key := range keys {
		if !lk.blind {
			out = appendQuestion(out, stmtRoleStatus, inBinary, key.user, key.database)
		}
		if lk.query != "" {
			out = appendQuestion(out, stmtSecret, nil, key.user)
		}
	}
	if _, err := lk.Conn.Write(out); err != nil {
		return err
	}
	for i := range keys {
		r := &results[i]
		if !lk.blind {
			row, err := readRow(lk.answers)
			if err == nil {
				r.Value, err = l.roleStatus(lk, row)
			}
			if r.Err = err; err != nil && pgwire.CodeOf(err) == "" {
				return err
			}
		}
		if lk.query != "" {
			row, err := readRow(lk.answers)
			if err == nil {
				err = r.Value.found(row)
			}
			if r.Err = cmp.Or(r.Err, err); err != nil && pgwire.CodeOf(err) == "" {
				return err
			}
		}
	}
	return nil
}

// inBinary requests binary format for all columns of an answer.
var inBinary = []byte{0, 1, 0, 1}

func appendQuestion(dst []byte, stmt string, format []byte, params ...string) []byte {
	args := pgwire.BindArgs{ResultFormats: format}
	for _, p := range params {
		args.Values = append(args.Values, []byte(p))
	}
	dst = pgwire.AppendBind(dst, "", stmt, &args)
	return pgwire.AppendSync(pgwire.AppendExecute(dst, "", 1))
}

// readRow reads up to ReadyForQuery, and returns the only row, if there is one, or the
// server's error.
func readRow(r io.Reader) (row [][]byte, failure error) {
	for {
		typ, body, err := readMessage(r, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
		switch typ {
		case pgwire.ServerDataRow:
			if row, err = pgwire.ParseDataRow(body, nil); err != nil {
				return nil, err
			}
		case pgwire.ServerError:
			e, err := pgwire.ParseError(body)
			if err != nil {
				return nil, err
			}
			failure = e
		case pgwire.ServerReady:
			return row, failure
		}
	}
}
