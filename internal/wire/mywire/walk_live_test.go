package mywire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/lab"
)

// session speaks raw commands to a server.
type session struct {
	*Server
	t *testing.T
	a Answer
}

func newSession(t *testing.T, s target, caps Caps) *session {
	t.Helper()
	plugin := s.AuthPlugins()[0]
	cfg := s.config(plugin, livePassword+plugin)
	cfg.Caps, cfg.Database, cfg.TLSMode = caps, "weir", TLSDisabled
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &session{Server: c, t: t}
}

// do sends one command and reads its answer. It checks that the answer reads the
// same however it is cut, and that it ends where the server stops.
func (s *session) do(packet []byte) []byte {
	s.t.Helper()
	stream := s.exchange(packet, packet[HeaderLen])
	agreeCut(s.t, packet[HeaderLen], s.Caps, stream)
	return stream
}

func (s *session) exchange(packet []byte, command byte) []byte {
	s.t.Helper()
	if _, err := s.Conn.Write(packet); err != nil {
		s.t.Fatal(err)
	}
	if !HasAnswer(command) {
		return nil
	}
	s.a.Reset(command, s.Caps)
	var stream []byte
	buf := make([]byte, 1<<16)
	at := 0
	for {
		n, err := s.Conn.Read(buf)
		if err != nil {
			s.t.Fatalf("command %#02x: %v after %x", command, err, stream)
		}
		for stream = append(stream, buf[:n]...); at < len(stream); {
			n, event, err := s.a.Feed(stream[at:])
			if at += n; err != nil {
				s.t.Fatalf("command %#02x: %v in %x", command, err, stream)
			}
			switch event {
			case EventDone:
				if at != len(stream) {
					s.t.Fatalf("command %#02x: %x behind the end", command, stream[at:])
				}
				return stream
			case EventInfile:
				seq := stream[at-HeaderLen-1-len(s.a.File())+3] + 1
				reply := AppendPacket(AppendPacket(nil, seq, []byte("7\n8\n9\n")), seq+1, nil)
				if _, err := s.Conn.Write(reply); err != nil {
					s.t.Fatal(err)
				}
				s.a.Resume(seq + 2)
			case EventAuth:
				s.t.Fatalf("command %#02x asks for %x", command, s.a.AuthRequest())
			}
		}
	}
}

func (s *session) query(sql string) []byte {
	s.t.Helper()
	return s.do(AppendQuery(nil, s.Caps, sql))
}

// fine fails the test if the last answer was an error.
func (s *session) fine(what string) {
	s.t.Helper()
	if e := s.a.Err(); e != nil {
		s.t.Fatalf("%s: %v", what, e)
	}
}

var liveCaps = []Caps{
	WantedCaps,
	WantedCaps &^ CapDeprecateEOF,
	WantedCaps &^ (CapSessionTrack | CapDeprecateEOF),
	(WantedCaps | CapsMariaDB | CapLocalFiles | CapQueryAttributes) &^ CapsUnspoken,
}

// eachSession runs f with each server and set of capabilities.
func eachSession(t *testing.T, f func(t *testing.T, s *session)) {
	eachServer(t, func(t *testing.T, s target) {
		for _, caps := range liveCaps {
			t.Run(fmt.Sprintf("%#x", caps), func(t *testing.T) { f(t, newSession(t, s, caps)) })
		}
	})
}

func TestAnswersOfServersToQueries(t *testing.T) {
	eachSession(t, func(t *testing.T, s *session) {
		for _, sql := range []string{
			"DROP TABLE IF EXISTS walk", "DROP PROCEDURE IF EXISTS walk",
			"CREATE TABLE walk (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(50), b LONGBLOB)",
			"CREATE PROCEDURE walk(OUT x INT) BEGIN SELECT 1; SELECT 2, 3; SET x = 4; END",
		} {
			s.query(sql)
			s.fine(sql)
		}
		s.query("INSERT INTO walk (v) VALUES ('a'), ('b'), ('c')")
		if ok := s.a.OK(); ok.AffectedRows != 3 || ok.LastInsertID != 1 || string(ok.Info) != "Records: 3  Duplicates: 0  Warnings: 0" {
			t.Errorf("INSERT: %+v", ok)
		}
		s.query("SELECT * FROM walk")
		if s.a.Rows() != 3 || s.a.Results() != 1 || s.a.OK().Status&StatusAutocommit == 0 {
			t.Errorf("SELECT: %d rows, %+v", s.a.Rows(), s.a.OK())
		}
		s.query("SELECT 1 WHERE 1 = 0")
		if s.a.Rows() != 0 {
			t.Errorf("%d rows of an empty result", s.a.Rows())
		}
		s.query("BEGIN")
		if s.a.OK().Status&StatusInTrans == 0 {
			t.Errorf("BEGIN: %+v", s.a.OK())
		}
		s.query("INSERT INTO walk (id) VALUES (1)")
		if s.a.ErrorCode() != ErrDuplicateKey || s.a.Err().State != "23000" {
			t.Errorf("duplicate key: %v", s.a.Err())
		}
		s.query("ROLLBACK")
		s.query("SELECT 1; INSERT INTO walk (v) VALUES ('d'); SELECT v FROM walk; SELECT nonsense; SELECT 1")
		if s.a.Results() != 4 || s.a.Rows() != 5 || s.a.ErrorCode() != 1054 {
			t.Errorf("several statements: %d results, %d rows, %v", s.a.Results(), s.a.Rows(), s.a.Err())
		}
		s.query("CALL walk(@x)")
		if s.a.Results() != 3 || s.a.Rows() != 2 {
			t.Errorf("CALL: %d results, %d rows", s.a.Results(), s.a.Rows())
		}
		s.query("SELECT CAST('x' AS UNSIGNED)")
		if s.a.OK().Warnings != 1 {
			t.Errorf("%d warnings, want 1", s.a.OK().Warnings)
		}
		s.query("SELECT REPEAT('x', 70000), '' UNION ALL SELECT NULL, REPEAT('y', 300)")
		s.fine("long rows")
	})
}

func TestAnswersOfServersToRowsOf16MiB(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		if err := s.Exec(t.Context(), "SET GLOBAL max_allowed_packet = 1 << 26"); err != nil {
			t.Fatal(err)
		}
		for _, caps := range liveCaps[:2] {
			c := newSession(t, s, caps)
			for _, n := range []int{MaxPayload - 5, MaxPayload - 4} {
				sql := AppendQuery(nil, c.Caps, fmt.Sprintf("SELECT REPEAT('x', %d)", n))
				stream := c.exchange(sql, ComQuery)
				c.fine("a long row")
				if c.a.Rows() != 1 || len(stream) < n {
					t.Errorf("%d bytes: %d rows in %d bytes", n, c.a.Rows(), len(stream))
				}
			}
			if !caps.Has(CapDeprecateEOF) {
				continue
			}
			// And in the other direction.
			if got := one(t, c.Server, "SELECT LENGTH('"+string(bytes.Repeat([]byte{'y'}, MaxPayload))+"')"); got != fmt.Sprint(MaxPayload) {
				t.Errorf("the server read %s bytes", got)
			}
		}
	})
}

func TestAnswersOfServersToPreparedStatements(t *testing.T) {
	eachSession(t, func(t *testing.T, s *session) {
		s.query("CREATE TABLE IF NOT EXISTS prepared (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(50))")
		s.query("TRUNCATE prepared")
		for _, c := range []struct {
			sql             string
			params, columns uint16
		}{
			{"SELECT ?, ?", 2, 2}, {"SELECT 1", 0, 1}, {"INSERT INTO prepared (v) VALUES (?)", 1, 0}, {"DO 1", 0, 0},
		} {
			s.do(AppendPrepare(nil, c.sql))
			s.fine(c.sql)
			if p := s.a.Prepared(); p.Params != c.params || p.Columns != c.columns || p.StmtID == 0 {
				t.Errorf("%s: %+v", c.sql, p)
			}
		}
		s.do(AppendPrepare(nil, "SELECT nonsense"))
		if s.a.ErrorCode() != 1054 {
			t.Errorf("%v", s.a.Err())
		}
		s.insertMany()
		s.cursor()
		s.longData()
	})
}

// insertMany makes one execution of three: the way in which weir groups INSERTs.
func (s *session) insertMany() {
	s.t.Helper()
	s.do(AppendPrepare(nil, "INSERT INTO prepared (id, v) VALUES (?, ?), (?, ?), (?, ?)"))
	id := s.a.Prepared().StmtID
	text := []byte{TypeLongLong, 0, TypeVarString, 0}
	number := []byte{TypeTiny, 0x80, TypeNull, 0}
	each := []ExecuteMsg{
		s.reparse(AppendExecute(nil, 0, 1, 0, []byte{0}, text, binary.LittleEndian.AppendUint64(nil, 10), AppendLenencString(nil, "ten")), 2),
		s.reparse(AppendExecute(nil, 0, 2, 0, []byte{2}, number, []byte{200}), 2),
		s.reparse(AppendExecute(nil, 0, 3, 0, []byte{0}, text, binary.LittleEndian.AppendUint64(nil, 30), AppendLenencString(nil, "thirty")), 2),
	}
	var nulls, types []byte
	var values [][]byte
	for i, m := range each {
		if err := m.CheckValues(m.Types, nil); err != nil {
			s.t.Fatal(err)
		}
		nulls, types, values = AppendNulls(nulls, 2*i, m.Nulls, 2), append(types, m.Types...), append(values, m.Values)
	}
	s.do(AppendExecute(nil, s.Caps, id, 0, nulls, types, values...))
	s.fine("three executions in one")
	if ok := s.a.OK(); ok.AffectedRows != 3 {
		s.t.Errorf("%+v", ok)
	}
	rows, err := s.Query(s.t.Context(), "SELECT * FROM prepared ORDER BY id")
	if err != nil || fmt.Sprint(rows) != "[[{10 true} {ten true}] [{30 true} {thirty true}] [{200 true} { false}]]" {
		s.t.Errorf("%v, %v", rows, err)
	}
}

func (s *session) reparse(packet []byte, params int) ExecuteMsg {
	s.t.Helper()
	payload, _, err := Payload(packet)
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := ParseExecute(payload, params, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *session) cursor() {
	s.t.Helper()
	s.do(AppendPrepare(nil, "SELECT * FROM prepared ORDER BY id"))
	id := s.a.Prepared().StmtID
	s.do(AppendExecute(nil, s.Caps, id, 0, nil, nil))
	if s.fine("execute"); s.a.Rows() != 3 {
		s.t.Errorf("%d rows", s.a.Rows())
	}
	s.do(AppendExecute(nil, s.Caps, id, CursorReadOnly, nil, nil))
	if s.fine("open cursor"); s.a.Rows() != 0 || s.a.OK().Status&StatusCursorExists == 0 {
		s.t.Errorf("%d rows, %+v", s.a.Rows(), s.a.OK())
	}
	var got []uint64
	for range 5 {
		s.do(AppendFetch(nil, id, 2))
		s.fine("fetch")
		got = append(got, s.a.Rows())
		if s.a.OK().Status&StatusLastRowSent != 0 {
			break
		}
	}
	if len(got) < 2 || got[0] != 2 || got[1] != 1 {
		s.t.Errorf("rows fetched: %v", got)
	}
	s.do(AppendStmtReset(nil, id))
	s.fine("reset")
	s.exchange(AppendStmtClose(nil, id), ComStmtClose)
	s.do(AppendFetch(nil, id, 1))
	if s.a.ErrorCode() != ErrUnknownStatement {
		s.t.Errorf("fetch of a closed statement: %v", s.a.Err())
	}
}

func (s *session) longData() {
	s.t.Helper()
	s.do(AppendPrepare(nil, "SELECT LENGTH(?), ?"))
	id := s.a.Prepared().StmtID
	for range 3 {
		packet := AppendLongData(nil, LongDataMsg{StmtID: id, Param: 0, Data: make([]byte, 1000)})
		s.exchange(packet, ComStmtSendLongData)
	}
	args := [][]byte{{0}, {TypeBlob, 0, TypeTiny, 0}, {5}}
	packet := AppendExecute(nil, s.Caps, id, 0, args[0], args[1], args[2])
	if err := s.reparse(AppendExecute(nil, 0, id, 0, args[0], args[1], args[2]), 2).CheckValues(args[1], []byte{1}); err != nil {
		s.t.Error(err)
	}
	stream := s.do(packet)
	s.fine("long data")
	if !bytes.Contains(stream, binary.LittleEndian.AppendUint16(nil, 3000)) || s.a.Rows() != 1 {
		s.t.Errorf("%d rows, %x", s.a.Rows(), stream)
	}
}

func TestAnswersOfServersToOtherCommands(t *testing.T) {
	eachSession(t, func(t *testing.T, s *session) {
		for name, packet := range map[string][]byte{
			"init db": AppendInitDB(nil, "weir"), "ping": AppendPing(nil), "reset": AppendResetConnection(nil),
			"set option": AppendSetOption(nil, OptionMultiStatementsOff), "statistics": AppendCommand(nil, ComStatistics, ""),
		} {
			s.do(packet)
			s.fine(name)
		}
		s.do(AppendInitDB(nil, "nowhere"))
		if s.a.ErrorCode() != ErrUnknownDatabase {
			t.Errorf("%v", s.a.Err())
		}
		// MySQL has dropped some of these: then they are an error, which has an
		// end as well.
		s.do(AppendInitDB(nil, "weir"))
		s.query("CREATE TABLE IF NOT EXISTS fields (a INT, b INT)")
		s.do(AppendCommand(nil, ComFieldList, "fields\x00%"))
		if s.IsMariaDB() && s.a.Rows() != 2 {
			t.Errorf("%d fields, %v", s.a.Rows(), s.a.Err())
		}
		s.do(AppendCommand(nil, ComProcessInfo, ""))
		s.do(AppendCommand(nil, ComDebug, ""))
		s.do(AppendProcessKill(nil, 1<<30))
		s.do(AppendCommand(nil, 0x7f, ""))
		if s.a.ErrorCode() != ErrUnknownCommand {
			t.Errorf("%v", s.a.Err())
		}
		s.do(AppendPing(nil))
		s.fine("ping")
	})
}

func TestAnswersOfServersToPipelinedCommands(t *testing.T) {
	eachSession(t, func(t *testing.T, s *session) {
		commands := [][]byte{
			AppendQuery(nil, s.Caps, "SELECT 1"), AppendPing(nil), AppendQuery(nil, s.Caps, "SELECT nonsense"),
			AppendPrepare(nil, "SELECT ?"), AppendQuery(nil, s.Caps, "SET @a = 1"),
		}
		if _, err := s.Conn.Write(slices.Concat(commands...)); err != nil {
			t.Fatal(err)
		}
		var left []byte
		for _, c := range commands {
			s.a.Reset(c[HeaderLen], s.Caps)
			for event := EventMore; event != EventDone; {
				if len(left) == 0 {
					left = make([]byte, 50)
					n, err := io.ReadAtLeast(s.Conn, left, 1)
					if err != nil {
						t.Fatal(err)
					}
					left = left[:n]
				}
				n, e, err := s.a.Feed(left)
				if err != nil {
					t.Fatal(err)
				}
				left, event = left[n:], e
			}
		}
		if len(left) > 0 {
			t.Errorf("%x behind the last answer", left)
		}
	})
}

func TestAnswersOfServersTellSessionState(t *testing.T) {
	eachServer(t, func(t *testing.T, s target) {
		c := newSession(t, s, WantedCaps)
		c.query("SET SESSION session_track_system_variables = '*', session_track_schema = 1, session_track_state_change = 1")
		c.fine("session tracking")
		c.query("SET SESSION session_track_transaction_info = 'CHARACTERISTICS'")
		c.fine("transaction tracking")
		for _, want := range []struct {
			sql         string
			kind        byte
			name, value string
		}{
			{"SET time_zone = '+01:00'", TrackSystemVariables, "time_zone", "+01:00"},
			{"SET NAMES latin1", TrackSystemVariables, "character_set_client", "latin1"},
			{"USE mysql", TrackSchema, "", "mysql"},
			{"START TRANSACTION", TrackTransactionState, "", "T_______"},
			{"COMMIT", TrackTransactionState, "", "________"},
			{"SET @x = 1", TrackStateChange, "", "1"},
		} {
			c.query(want.sql)
			c.fine(want.sql)
			found := false
			for rest := c.a.OK().State; len(rest) > 0; {
				change, tail, err := ParseChange(rest)
				if err != nil {
					t.Fatalf("%s: %v in %x", want.sql, err, rest)
				}
				found = found || change.Kind == want.kind && string(change.Name) == want.name && string(change.Value) == want.value
				rest = tail
			}
			if !found {
				t.Errorf("%s: %q", want.sql, c.a.OK().State)
			}
		}
	})
}

func TestAnswersOfMariaDB(t *testing.T) {
	s := newSession(t, server(t, lab.FlavorMariaDB), liveCaps[3])
	s.query("SET SESSION binlog_format = 'ROW'") // a server whose format is STATEMENT takes no bulks
	s.fine("binlog_format")
	s.query("CREATE OR REPLACE TABLE bulk (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(50))")
	s.do(AppendPrepare(nil, "INSERT INTO bulk (v) VALUES (?)"))
	bulk := binary.LittleEndian.AppendUint32(nil, s.a.Prepared().StmtID)
	bulk = append(bulk, BulkSendTypes, 0, TypeVarString, 0, 0, 1, 'a', 0, 1, 'b', 1)
	s.do(AppendCommand(nil, ComStmtBulkExecute, bulk))
	if s.fine("bulk"); s.a.OK().AffectedRows != 3 {
		t.Errorf("%+v", s.a.OK())
	}
	s.query("LOAD DATA LOCAL INFILE 'x' INTO TABLE bulk (v)")
	if s.fine("infile"); s.a.OK().AffectedRows != 3 {
		t.Errorf("%+v", s.a.OK())
	}
	s.query("SELECT * FROM bulk; LOAD DATA LOCAL INFILE 'y' INTO TABLE bulk (v); SELECT 1")
	if s.fine("infile among others"); s.a.Results() != 3 {
		t.Errorf("%d results", s.a.Results())
	}
	s.query("SET progress_report_time = 1")
	s.query("ALTER TABLE bulk ENGINE=InnoDB, ALGORITHM=COPY")
	s.fine("alter")
}

// AuthRequest returns the payload of the AuthSwitchRequest or AuthMoreData that
// EventAuth stands for.
func (a *Answer) AuthRequest() []byte { return a.request }

// Results returns how many results have ended.
func (a *Answer) Results() int { return a.results }
