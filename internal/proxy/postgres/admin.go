package postgres

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// adminDatabase is the database name under which weir answers itself.
const adminDatabase = "weir"

// authenticateAdmin lets in the DSN's user and those listed, by a secret that
// weir holds, else as the server decides; without a password only who may have
// what weir has: see core.MayBorrow.
func (s *Server) authenticateAdmin(ctx context.Context, conn net.Conn, start *pgwire.Startup) error {
	allowed := start.User == s.cfg().Postgres.User || slices.Contains(s.cfg().AdminUsers, start.User)
	secret, known := s.creds.Secret(start.User)
	switch {
	case allowed && !known && core.MayBorrow(conn, s.cfg().TrustLoopback):
		_, err := pgwire.Authenticate(ctx, conn, start.User, pgwire.AuthTrust, pgwire.Secret{})
		return err
	case allowed && !known && s.cfg().Auth == AuthRelay:
		login := *start
		login.Database = s.cfg().Postgres.Database
		be, err := s.relay(ctx, conn, &login)
		if err == nil {
			be.close()
		}
		return err
	case !allowed:
		secret = pgwire.Secret{} // fails as a wrong password does
	}
	_, err := pgwire.Authenticate(ctx, conn, start.User, pgwire.AuthMD5, secret)
	return err
}

// serveAdmin answers SHOW commands until the client leaves.
func (s *Server) serveAdmin(conn net.Conn) error {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(s.DialCtx, func() { _ = conn.Close() })
	defer stop()
	out := pgwire.AppendParameterStatus(nil, "server_version", "15.0 (weir)")
	out = pgwire.AppendParameterStatus(out, "client_encoding", "UTF8")
	out = pgwire.AppendParameterStatus(out, "standard_conforming_strings", "on")
	out = pgwire.AppendBackendKeyData(out, 1, make([]byte, 4))
	out = pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	r := bufio.NewReader(conn)
	for {
		if _, err := conn.Write(out); err != nil {
			return nil // the client has gone
		}
		typ, body, err := readMessage(r, 1<<16)
		if err != nil || typ == pgwire.ClientTerminate {
			return nil
		}
		switch typ {
		case pgwire.ClientQuery:
			sql, err := pgwire.ParseQuery(body)
			if err != nil {
				return err
			}
			out = s.adminQuery(out[:0], string(sql))
		case pgwire.ClientSync:
			out = pgwire.AppendReadyForQuery(out[:0], pgwire.StatusIdle)
		default:
			out = pgwire.AppendError(out[:0], pgwire.NewError(pgwire.CodeFeatureNotSupported,
				"the admin console takes simple queries only"))
			if typ == pgwire.ClientParse {
				continue
			}
			out = out[:0]
		}
	}
}

// readMessage reads one message of at most limit bytes.
func readMessage(r io.Reader, limit int) (byte, []byte, error) {
	var head [pgwire.HeaderLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head[1:]))) - 4
	if n < 0 || n > limit {
		return 0, nil, pgwire.ErrMalformed
	}
	body := make([]byte, n)
	_, err := io.ReadFull(r, body)
	return head[0], body, err
}

func (s *Server) adminQuery(out []byte, sql string) []byte {
	words := strings.Fields(strings.ToUpper(strings.TrimRight(strings.TrimSpace(sql), ";")))
	ctx, cancel := context.WithTimeout(s.DialCtx, 5*time.Second)
	defer cancel()
	if len(words) == 0 {
		return pgwire.AppendReadyForQuery(pgwire.AppendEmptyQuery(out), pgwire.StatusIdle)
	}
	snap, err := s.Snapshot(ctx)
	if err != nil {
		out = pgwire.AppendError(out, pgwire.NewError(pgwire.CodeInternalError, "collect state: %v", err))
		return pgwire.AppendReadyForQuery(out, pgwire.StatusIdle)
	}
	var t sight.Table
	switch strings.Join(words, " ") {
	case "SHOW POOLS":
		t = snap.PoolsTable()
	case "SHOW STATS":
		t = snap.StatsTable()
	case "SHOW BATCHES":
		t = snap.BatchesTable()
	case "SHOW CLIENTS":
		t = s.showClients(ctx)
	case "SHOW SERVERS":
		t = s.showServers(ctx)
	case "SHOW DATABASES":
		t = s.showDatabases(ctx)
	case "SHOW STATEMENTS":
		t = snap.StatementsTable()
	case "SHOW PINS":
		t = snap.PinsTable()
	case "SHOW CONFIG":
		t = s.showConfig()
	case "SHOW VERSION":
		t = sight.Table{Cols: []string{"version"}, Rows: [][]string{{"weir " + sight.Version}}}
	case "SHOW HELP", "SHOW":
		t = sight.Table{Cols: []string{"command"}}
		for _, c := range []string{"BATCHES", "CLIENTS", "CONFIG", "DATABASES", "PINS", "POOLS", "SERVERS", "STATEMENTS", "STATS", "VERSION"} {
			t.Rows = append(t.Rows, []string{"SHOW " + c})
		}
	default:
		e := pgwire.NewError(pgwire.CodeSyntaxError, "unknown command of the weir console: %s", sql)
		e.Hint = "SHOW HELP lists the commands."
		return pgwire.AppendReadyForQuery(pgwire.AppendError(out, e), pgwire.StatusIdle)
	}
	return pgwire.AppendReadyForQuery(appendTable(out, &t), pgwire.StatusIdle)
}

const oidText = 25

// appendTable appends a table as the result of SHOW.
func appendTable(out []byte, t *sight.Table) []byte {
	fields := make([]pgwire.Field, len(t.Cols))
	for i, c := range t.Cols {
		fields[i] = pgwire.Field{Name: c, TypeOID: oidText, TypeSize: -1, TypeMod: -1}
	}
	out = pgwire.AppendRowDescription(out, fields)
	vals := make([][]byte, len(t.Cols))
	for _, r := range t.Rows {
		for i := range vals {
			vals[i] = []byte(r[i])
		}
		out = pgwire.AppendDataRow(out, vals)
	}
	return pgwire.AppendCommandComplete(out, "SHOW")
}

func (s *Server) showConfig() sight.Table {
	c := s.cfg()
	t := sight.Table{Cols: []string{"key", "value"}}
	for _, kv := range [][2]any{
		{"postgres", c.Postgres.Address},
		{"listen", s.Addr()},
		{"mode", c.Mode},
		{"pool_size", c.PoolSize},
		{"read_lanes", c.ReadLanes},
		{"write_lanes", c.WriteLanes},
		{"rows_lane", !c.NoRowsLane},
		{"solo_lane", !c.NoSoloLane},
		{"loops", c.Loops},
		{"max_clients", c.MaxClients},
		{"max_waiting", c.MaxWaiting},
		{"queue_timeout", c.QueueTimeout.String()},
		{"connect_timeout", c.ConnectTimeout.String()},
		{"connect_patience", c.ConnectPatience.String()},
		{"auth", c.Auth},
	} {
		t.Add(kv[0], kv[1])
	}
	return t
}

func (s *Server) showClients(ctx context.Context) sight.Table {
	t := sight.Table{Cols: []string{"id", "database", "user", "address", "application_name", "state", "pins", "statements", "grouped", "errors", "connected_s"}}
	for _, l := range s.Loops {
		err := l.Call(ctx, func() {
			for _, c := range l.Clients {
				t.Add(c.id, c.p.key.database, c.p.key.user, c.addr, c.app, c.state(), c.pins, c.stats.units, c.stats.grouped, c.stats.errors, int((l.Now - c.since).Seconds()))
			}
		})
		if errors.Is(err, netloop.ErrStopped) {
			break
		}
	}
	return t
}

// state names what the client is doing.
func (c *client) state() string {
	switch {
	case !c.greeted:
		return "login"
	case c.waiting:
		return "waiting"
	case c.tx == pgwire.StatusFailed:
		return "in failed transaction"
	case c.tx == pgwire.StatusInTx:
		return "in transaction"
	case c.inflight > 0, c.link != nil && c.link.depth() > 0:
		return "active"
	case c.pins != 0:
		return "pinned"
	}
	return "idle"
}

func (s *Server) showServers(ctx context.Context) sight.Table {
	t := sight.Table{Cols: []string{"pid", "database", "user", "mode", "in_flight", "prepared", "settings", "age_s"}}
	for _, l := range s.Loops {
		err := l.Call(ctx, func() {
			for _, p := range l.PoolList {
				for _, b := range p.backends {
					t.Add(b.pid, p.key.database, p.key.user, b.mode, b.depth(), len(b.prepared), b.set.Len(), int((l.Now - b.born).Seconds()))
				}
			}
		})
		if errors.Is(err, netloop.ErrStopped) {
			break
		}
	}
	return t
}

// showDatabases tells what is known of each database's catalogue. Of several loops
// it is what the one knows that knows least.
func (s *Server) showDatabases(ctx context.Context) sight.Table {
	t := sight.Table{Cols: []string{"database", "catalogue", "names", "reads", "failures", "read_ms", "look_ms", "error"}}
	merged := make(map[string]proof)
	for _, l := range s.Loops {
		err := l.Call(ctx, func() {
			for db, f := range l.proofs {
				m, seen := merged[db]
				reads, failures := m.reads+f.reads, m.failures+f.failures
				if !seen || f.standing() < m.standing() {
					m = proof{index: f.index, ready: f.ready, err: f.err, took: f.took, cost: f.cost}
				}
				m.reads, m.failures = reads, failures
				merged[db] = m
			}
		})
		if errors.Is(err, netloop.ErrStopped) {
			break
		}
	}
	for _, db := range slices.Sorted(maps.Keys(merged)) {
		m := merged[db]
		names, why := 0, ""
		if m.index != nil {
			names = len(m.index.names)
		}
		if m.err != nil {
			why = m.err.Error()
		}
		t.Add(db, m.standing(), names, m.reads, m.failures, m.took, m.cost, why)
	}
	return t
}

// status answers SHOW WEIR STATUS on an ordinary connection.
func (c *client) status() []byte {
	pid, mode := "", "none"
	if b := c.served; b != nil {
		pid, mode = strconv.FormatUint(uint64(b.pid), 10), b.mode.String()
	}
	t := sight.Table{Cols: []string{"backend_pid", "backend_mode", "pool", "pins", "statements", "grouped", "errors", "servers", "free", "waiting"}}
	t.Add(pid, mode, c.p.key, c.pins, c.stats.units, c.stats.grouped, c.stats.errors, len(c.p.backends), len(c.p.free), len(c.p.excl)+len(c.p.reads))
	return pgwire.AppendReadyForQuery(appendTable(nil, &t), c.tx)
}

// queryOne runs a query with text parameters on a blocking connection and
// returns its first row, nil if there is none.
func queryOne(ctx context.Context, conn net.Conn, sql string, params ...string) ([][]byte, error) {
	if d, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(d); err != nil {
			return nil, err
		}
	}
	out := pgwire.AppendParse(nil, "", sql, nil)
	var args pgwire.BindArgs
	for _, p := range params {
		args.Values = append(args.Values, []byte(p))
	}
	out = pgwire.AppendBind(out, "", "", &args)
	out = pgwire.AppendExecute(out, "", 1)
	if _, err := conn.Write(pgwire.AppendSync(out)); err != nil {
		return nil, fmt.Errorf("send query: %w", err)
	}
	var row [][]byte
	var failure error
	for {
		typ, body, err := readMessage(conn, 1<<20)
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
