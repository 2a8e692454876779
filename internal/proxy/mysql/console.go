package mysql

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is the protocol of the admin console, and its answers to clients that take it for a
// server. The commands are core's.

// A console is one session of the admin console.
type console struct {
	srv  *Server
	caps mywire.Caps
	id   uint32
	user string
	addr string // of the client
	// database is the name under which the client has logged in.
	database string

	ctx  context.Context // of the current command
	then func()          // called when the command is answered; or nil
}

// serveConsole sends a client the OK of its login to the console, and answers its commands
// until it leaves.
func (s *Server) serveConsole(ctx context.Context, a *loginAttempt, database string) error {
	if err := a.wire.Welcome(ctx, &mywire.OK{Status: mywire.StatusAutocommit}); err != nil {
		return err
	}
	conn := a.wire.Conn
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(s.DialCtx, func() { _ = conn.Close() })
	defer stop()
	s.Consoles.Add(1)
	defer s.Consoles.Add(-1)
	con := &console{srv: s, caps: a.wire.Caps, id: a.c.id, user: a.key.user, addr: a.c.addr, database: database}
	r := bufio.NewReader(conn)
	for {
		payload, err := readCommand(r)
		if errors.Is(err, mywire.ErrMalformed) {
			return err
		}
		if err != nil || payload[0] == mywire.ComQuit {
			return nil // the client has left
		}
		var out []byte
		if err := core.UntilHangup(s.DialCtx, conn, r, func(ctx context.Context) {
			con.ctx, con.then = ctx, nil
			out = con.answer(payload)
		}); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return nil
		}
		if con.then != nil {
			con.then()
		}
	}
}

// maxConsoleCommand bounds a command to the console, in bytes.
const maxConsoleCommand = 1 << 16

// readCommand reads one command.
func readCommand(r io.Reader) ([]byte, error) {
	var head [mywire.HeaderLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n, seq, _ := mywire.Peek(head[:])
	if n == 0 || n > maxConsoleCommand || seq != 0 {
		return nil, fmt.Errorf("console command: %w", mywire.ErrMalformed)
	}
	payload := make([]byte, n)
	_, err := io.ReadFull(r, payload)
	return payload, err
}

// answer returns the answer to one command.
func (con *console) answer(payload []byte) []byte {
	arg := payload[1:]
	switch payload[0] {
	case mywire.ComQuery:
		return con.query(string(arg))
	case mywire.ComPing, mywire.ComResetConnection:
		return con.fine()
	case mywire.ComInitDB:
		return con.use(string(arg))
	case mywire.ComFieldList, mywire.ComSetOption:
		return mywire.AppendEnd(nil, 1, con.caps, &mywire.OK{Status: mywire.StatusAutocommit})
	case mywire.ComStatistics:
		return mywire.AppendPacket(nil, 1, fmt.Appendf(nil, "weir %s  Uptime: %d", sight.Version, int(con.srv.Monotonic().Seconds())))
	case mywire.ComStmtClose, mywire.ComStmtSendLongData:
		return nil // these have no answer
	case mywire.ComStmtPrepare:
		return con.refuse(mywire.NewError(errUnsupportedPrepared, "The weir console does not prepare statements"))
	}
	return con.refuse(mywire.NewError(mywire.ErrUnknownCommand, "Unknown command for the weir console"))
}

// errUnsupportedPrepared is ER_UNSUPPORTED_PS.
const errUnsupportedPrepared = 1295

func (con *console) fine() []byte {
	return mywire.AppendOK(nil, 1, con.caps, &mywire.OK{Status: mywire.StatusAutocommit})
}

func (con *console) refuse(e *mywire.Error) []byte { return mywire.AppendError(nil, 1, e) }

func (con *console) use(database string) []byte {
	if core.IsAdminDatabase(database) {
		return con.fine()
	}
	return con.refuse(mywire.NewError(mywire.ErrUnknownDatabase, "Unknown database '%s': this is the weir console", database))
}

// table returns the packets of a result of text columns.
func (con *console) table(t *sight.Table) []byte {
	rows := make([][][]byte, len(t.Rows))
	for i, r := range t.Rows {
		for _, cell := range r {
			rows[i] = append(rows[i], []byte(cell))
		}
	}
	return mywire.AppendTextResult(nil, con.caps, mywire.StatusAutocommit, t.Cols, rows)
}

// query answers a text: a command of the console, or one of the queries that clients send when
// they connect.
func (con *console) query(sql string) []byte {
	sql = plainText(sql)
	words := strings.Fields(upper(sql))
	if len(words) == 0 {
		return con.refuse(mywire.NewError(errEmptyQuery, "Query was empty"))
	}
	if con.srv.cfg().isPeer(con.user) {
		return con.peer(sql)
	}
	if len(words) == 2 && words[0] == "USE" {
		return con.use(strings.Trim(strings.Fields(sql)[1], "`"))
	}
	a, err := con.srv.Command(con.ctx, sql)
	con.then = a.Then
	var no *core.Refusal
	if !errors.As(err, &no) || !no.Unknown { // otherwise it may be a query that clients send when they connect
		core.Operator{User: con.user, Client: con.addr}.Audited(con.srv.cfg().Audit, Engine, sql, a, err)
	}
	switch {
	case err == nil && a.Table != nil:
		return con.table(a.Table)
	case err == nil:
		return mywire.AppendOK(nil, 1, con.caps, &mywire.OK{Status: mywire.StatusAutocommit, Info: []byte(a.Notice)})
	case !errors.As(err, &no):
		return con.refuse(mywire.NewError(mywire.ErrUnknown, "%v", err))
	case !no.Unknown:
		return con.refuse(mywire.NewError(mywire.ErrUnknown, "%s", no.Message))
	}
	switch words[0] {
	case "SET", "COMMIT", "ROLLBACK":
		return con.fine()
	case "SELECT":
		if t, ok := con.selected(strings.TrimSpace(sql[len("SELECT"):])); ok {
			return con.table(&t)
		}
	case "SHOW":
		if t, ok := con.emptyShow(words); ok {
			return con.table(&t)
		}
	}
	return con.refuse(mywire.NewError(mywire.ErrSyntax, "Unknown command of the weir console: %s (SHOW HELP lists the commands)", sql))
}

// errEmptyQuery is ER_EMPTY_QUERY.
const errEmptyQuery = 1065

// plainText returns a text without comments in front of it and semicolons behind.
func plainText(sql string) string {
	for {
		sql = strings.TrimSpace(sql)
		if !strings.HasPrefix(sql, "/*") {
			break
		}
		_, rest, ok := strings.Cut(sql, "*/")
		if !ok {
			break
		}
		sql = rest
	}
	return strings.TrimRight(sql, "; \t\r\n")
}

// upper folds ASCII letters, and so keeps the offset of every byte.
func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - ('a' - 'A')
		}
	}
	return string(b)
}

// emptyShow answers common SHOW statements of clients for which the console has no data.
func (con *console) emptyShow(words []string) (t sight.Table, ok bool) {
	kind := words[min(1, len(words)-1)]
	if slices.Contains([]string{"SESSION", "GLOBAL", "FULL"}, kind) {
		kind = words[min(2, len(words)-1)]
	}
	switch kind {
	case "VARIABLES", "STATUS":
		return sight.Table{Cols: []string{"Variable_name", "Value"}}, true
	case "WARNINGS", "ERRORS":
		return sight.Table{Cols: []string{"Level", "Code", "Message"}}, true
	case "COLLATION", "CHARACTER":
		return sight.Table{Cols: []string{"Collation", "Charset", "Id", "Default", "Compiled", "Sortlen"}}, true
	case "SCHEMAS":
		return sight.Table{Cols: []string{"Database"}, Rows: [][]string{{con.database}}}, true
	case "TABLES":
		return sight.Table{Cols: []string{"Tables_in_" + con.database}}, true
	}
	return t, false
}

// selected answers a SELECT of variables, of functions without arguments and of numbers, as
// clients send when they connect. Variables that weir does not know are empty, as if the client
// had queried a variable that is not set.
func (con *console) selected(list string) (t sight.Table, ok bool) {
	if at := strings.LastIndex(upper(list), " LIMIT "); at >= 0 {
		list = list[:at]
	}
	var row []string
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		name := item
		if at := strings.LastIndex(upper(item), " AS "); at >= 0 {
			item, name = strings.TrimSpace(item[:at]), strings.Trim(strings.TrimSpace(item[at+4:]), "`'\"")
		}
		value, known := con.value(strings.ToLower(item))
		if !known {
			return t, false
		}
		t.Cols = append(t.Cols, name)
		row = append(row, value)
	}
	t.Rows = [][]string{row}
	return t, true
}

// value returns the value of an expression for a client of the console.
func (con *console) value(expression string) (string, bool) {
	switch expression {
	case "database()", "schema()":
		return con.database, true
	case "user()", "current_user()", "session_user()", "current_user":
		return con.user, true
	case "connection_id()":
		return strconv.FormatUint(uint64(con.id), 10), true
	case "version()":
		return "weir " + sight.Version, true
	}
	if _, err := strconv.ParseUint(expression, 10, 32); err == nil {
		return expression, true
	}
	name, ok := strings.CutPrefix(expression, "@@")
	if !ok || strings.ContainsAny(name, " ()'\"") {
		return "", false
	}
	if _, after, scoped := strings.Cut(name, "."); scoped {
		name = after
	}
	return consoleVariables[name], true
}

// consoleVariables are the variables that drivers read as numbers or names when they connect.
var consoleVariables = map[string]string{
	"auto_increment_increment": "1",
	"autocommit":               "1",
	"character_set_client":     "utf8mb4",
	"character_set_connection": "utf8mb4",
	"character_set_results":    "utf8mb4",
	"character_set_server":     "utf8mb4",
	"collation_connection":     "utf8mb4_general_ci",
	"collation_server":         "utf8mb4_general_ci",
	"interactive_timeout":      "28800",
	"lower_case_table_names":   "0",
	"max_allowed_packet":       strconv.Itoa(maxConsoleCommand),
	"net_buffer_length":        "16384",
	"net_write_timeout":        "60",
	"performance_schema":       "0",
	"session_track_schema":     "0",
	"system_time_zone":         "UTC",
	"time_zone":                "SYSTEM",
	"transaction_isolation":    "REPEATABLE-READ",
	"transaction_read_only":    "0",
	"tx_isolation":             "REPEATABLE-READ",
	"tx_read_only":             "0",
	"version":                  "weir " + sight.Version,
	"version_comment":          "weir " + sight.Version + ": the admin console (SHOW HELP)",
	"wait_timeout":             "28800",
}
