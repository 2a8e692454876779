package mysql_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// baseCaps is what ordinary clients have.
const baseCaps = mywire.CapLongFlag | mywire.CapTransactions | mywire.CapReserved | mywire.CapMultiResults | mywire.CapPSMultiResults |
	mywire.CapPluginAuth | mywire.CapPluginAuthLenenc | mywire.CapConnectAttrs | mywire.CapLocalFiles | mywire.CapLongPassword | mywire.CapsRequired

// diffTexts are steps of one COM_QUERY each.
func diffTexts(sql ...string) []diffStep {
	var out []diffStep
	for _, s := range sql {
		out = append(out, diffStep{text: s, parts: []diffPart{plain(mywire.ComQuery, s)}})
	}
	return out
}

func diffCommand(text string, parts ...diffPart) diffStep { return diffStep{text: text, parts: parts} }

func prepareStep(slot int, sql string) diffStep {
	return diffCommand("prepare "+sql, diffPart{cmd: mywire.ComStmtPrepare, slot: slot, message: func(*diffSession) []byte { return mywire.AppendPrepare(nil, sql) }})
}

// executeStep runs a statement whose parameters are all strings; a nil one was
// sent as long data.
func executeStep(slot int, flags byte, values ...[]byte) diffStep {
	return diffCommand(fmt.Sprintf("execute %d, flags %d", slot, flags), withSlot(mywire.ComStmtExecute, slot, func(id uint32) []byte {
		var types []byte
		var body [][]byte
		for _, v := range values {
			types = append(types, mywire.TypeBlob, 0)
			if v != nil {
				body = append(body, mywire.AppendLenencString(nil, v))
			}
		}
		return mywire.AppendExecute(nil, 0, id, flags, make([]byte, mywire.NullsLen(len(values))), types, body...)
	}))
}

func fetchStep(slot int, rows uint32) diffStep {
	return diffCommand(fmt.Sprintf("fetch %d", rows), withSlot(mywire.ComStmtFetch, slot, func(id uint32) []byte { return mywire.AppendFetch(nil, id, rows) }))
}

func resetStep(slot int) diffStep {
	return diffCommand("reset", withSlot(mywire.ComStmtReset, slot, func(id uint32) []byte { return mywire.AppendStmtReset(nil, id) }))
}

// longPart is long data for a parameter. It has no answer.
func longPart(slot int, param uint16, data []byte) diffPart {
	return withSlot(mywire.ComStmtSendLongData, slot, func(id uint32) []byte {
		return mywire.AppendLongData(nil, mywire.LongDataMsg{StmtID: id, Param: param, Data: data})
	})
}

// TestCommandsEqualThoseOfADirectConnection runs scripts that random ones seldom
// produce, in each class of capabilities.
func TestCommandsEqualThoseOfADirectConnection(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		for _, c := range commandScripts() {
			if c.mariadb && !isMariaDB(server) {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				r := newDiffRig(t, server, func(w *mysql.Config) { w.PoolSize, w.LocalInfile = 2, !c.noFiles })
				for _, caps := range []mywire.Caps{0, mywire.CapDeprecateEOF, mywire.CapMultiStatements | mywire.CapSessionTrack, mywire.CapDeprecateEOF | mywire.CapMultiStatements | mywire.CapSessionTrack | mywire.CapFoundRows} {
					caps = caps | baseCaps | c.caps
					if c.mariadb {
						caps &^= mywire.CapLongPassword
					}
					if excused, text := r.difference(t, diffScript{setup: c.setup, caps: caps, steps: c.steps}); text != "" || excused > 0 {
						t.Errorf("%d answers refused; %s", excused, text)
					}
				}
			})
		}
	})
}

type commandScript struct {
	name    string
	mariadb bool
	noFiles bool
	caps    mywire.Caps
	setup   []string
	steps   []diffStep
}

func commandScripts() []commandScript {
	ping := diffCommand("ping", plain(mywire.ComPing, ""))
	table := []string{"DROP TABLE IF EXISTS t", "CREATE TABLE t (a INT PRIMARY KEY, b LONGBLOB)", "INSERT INTO t VALUES (1,'one'),(2,'two'),(3,'three'),(4,NULL),(5,'five')"}
	return []commandScript{
		{name: "ping in every state", setup: table, steps: slices.Concat(
			[]diffStep{ping}, diffTexts("BEGIN"), []diffStep{ping}, diffTexts("SELECT nope"), []diffStep{ping}, diffTexts("UPDATE t SET b = 'x' WHERE a = 1"), []diffStep{ping}, diffTexts("ROLLBACK", "SET autocommit = 0"),
			[]diffStep{ping}, diffTexts("SELECT a FROM t"), []diffStep{ping}, diffTexts("COMMIT", "SET autocommit = 1", "START TRANSACTION READ ONLY"), []diffStep{ping}, diffTexts("COMMIT"), []diffStep{ping},
		)},
		{name: "cursor", setup: table, steps: []diffStep{
			prepareStep(1, "SELECT a, b FROM t ORDER BY a"), executeStep(1, mywire.CursorReadOnly), fetchStep(1, 2), ping, fetchStep(1, 2), fetchStep(1, 5), fetchStep(1, 1),
			executeStep(1, mywire.CursorReadOnly), fetchStep(1, 1), resetStep(1), fetchStep(1, 1), executeStep(1, mywire.CursorReadOnly), fetchStep(1, 9),
		}},
		{name: "two cursors", setup: table, steps: []diffStep{
			prepareStep(1, "SELECT a FROM t ORDER BY a"), prepareStep(2, "SELECT a FROM t WHERE a > ? ORDER BY a DESC"), executeStep(1, mywire.CursorReadOnly), executeStep(2, mywire.CursorReadOnly, []byte("2")),
			fetchStep(1, 2), fetchStep(2, 1), fetchStep(1, 1), fetchStep(2, 9), fetchStep(1, 9),
		}},
		{name: "long data", setup: table, steps: []diffStep{
			prepareStep(1, "INSERT INTO t VALUES (?, ?)"),
			diffCommand("execute with long data", longPart(1, 1, []byte("part one, ")), longPart(1, 1, []byte("part two")), executeStep(1, 0, []byte("7"), nil).parts[0]),
			prepareStep(2, "SELECT b FROM t WHERE a = ?"), executeStep(2, 0, []byte("7")),
			prepareStep(3, "SELECT LENGTH(?), ?"), diffCommand("empty long data", longPart(3, 0, nil), longPart(3, 1, []byte("")), executeStep(3, 0, nil, nil).parts[0]),
			prepareStep(4, "SELECT ?"), diffCommand("long data, reset", longPart(4, 0, []byte("forgotten")), resetStep(4).parts[0]), executeStep(4, 0, []byte("kept")),
			diffCommand("long data for nothing", longPart(9, 0, []byte("x")), ping.parts[0]), executeStep(2, 0, []byte("1")),
		}},
		{name: "long data for a parameter that is not there", setup: table, mariadb: true, steps: []diffStep{
			prepareStep(1, "SELECT ?"), diffCommand("long data, execute", longPart(1, 3, []byte("x")), executeStep(1, 0, []byte("1")).parts[0]),
		}},
		{name: "several results", setup: append(slices.Clone(table), "DROP PROCEDURE IF EXISTS p", "CREATE PROCEDURE p(IN n INT, OUT o INT) BEGIN SELECT n; SELECT a FROM t WHERE a < n; SET o = n + 1; END"), steps: slices.Concat(
			diffTexts("CALL p(3, @o)", "SELECT @o", "CALL p(NULL, @o)", "CALL missing(1)"),
			[]diffStep{prepareStep(1, "CALL p(?, ?)"), executeStep(1, 0, []byte("3"), []byte("0")), executeStep(1, 0, []byte("2"), []byte("0")), prepareStep(2, "SELECT 1"), executeStep(2, 0)},
		)},
		{name: "several statements", caps: mywire.CapMultiStatements, setup: table, steps: diffTexts(
			"SELECT 1; SELECT a FROM t; UPDATE t SET b = 'm' WHERE a = 1; SELECT ROW_COUNT()", "INSERT INTO t VALUES (8, 'x'); INSERT INTO t VALUES (8, 'x'); SELECT 1", "SELECT COUNT(*) FROM t", "BEGIN; DELETE FROM t; ROLLBACK; SELECT COUNT(*) FROM t",
			"SELECT 1; ", "SET sort_buffer_size = 65536; SELECT @@sort_buffer_size", "SELECT 'a;b'; SELECT ';'",
		)},
		{name: "options", setup: table, steps: slices.Concat(
			[]diffStep{prepareStep(1, "SELECT a FROM t ORDER BY a"), diffCommand("on", plain(mywire.ComSetOption, "\x00\x00"))}, diffTexts("SELECT 1; SELECT 2"), []diffStep{executeStep(1, 0), diffCommand("off", plain(mywire.ComSetOption, "\x01\x00"))}, diffTexts("SELECT 1; SELECT 2", "BEGIN"),
			[]diffStep{diffCommand("on in a transaction", plain(mywire.ComSetOption, "\x00\x00"))}, diffTexts("INSERT INTO t VALUES (9, 'o'); SELECT a FROM t", "COMMIT", "SELECT 1; SELECT 2"), []diffStep{executeStep(1, 0)},
		)},
		{name: "files", setup: table, steps: []diffStep{
			fileStep("LOAD DATA LOCAL INFILE 'f' INTO TABLE t", []byte("11\televen\n12\t"), []byte("twelve\n")), fileStep("LOAD DATA LOCAL INFILE 'f' INTO TABLE t"), fileStep("LOAD DATA LOCAL INFILE 'f' INTO TABLE t", []byte("1\tone\nnonsense\n")),
			fileStep("LOAD DATA LOCAL INFILE 'f' INTO TABLE missing", []byte("1\n")), diffTexts("SHOW WARNINGS")[0], diffTexts("SELECT * FROM t ORDER BY a")[0],
		}},
		{name: "files of prepared statements", mariadb: true, setup: table, steps: []diffStep{
			prepareStep(1, "LOAD DATA LOCAL INFILE 'f' INTO TABLE t"), fileOf(1, []byte("31\tone\n32\t"), []byte("two\n")), fileOf(1), fileOf(1, []byte("31\tagain\nnonsense\n")),
			diffTexts("SHOW WARNINGS")[0], diffTexts("SELECT * FROM t ORDER BY a")[0],
		}},
		{name: "files refused", noFiles: true, setup: table, steps: append(diffTexts("LOAD DATA LOCAL INFILE 'f' INTO TABLE t"), diffTexts("SELECT COUNT(*) FROM t")...)},
		{name: "bulk", mariadb: true, caps: mywire.CapBulkOperations | mywire.CapExtendedMetadata, setup: table, steps: []diffStep{
			prepareStep(1, "INSERT INTO t VALUES (?, ?)"), bulkStep(1, "21", "a", "22", "", "23", "c"), bulkStep(1, "24", "a", "21", "dup", "25", "c"), diffTexts("SELECT a, b FROM t ORDER BY a")[0],
			prepareStep(2, "UPDATE t SET b = ? WHERE a = ?"), bulkStep(2, "one", "1", "two", "2", "none", "77"), diffTexts("SELECT a, b FROM t ORDER BY a")[0], bulkStep(9, "1", "2"),
		}},
		{name: "prepared and executed at once", mariadb: true, caps: mywire.CapBulkOperations, setup: table, steps: []diffStep{
			atOnce("SELECT a FROM t ORDER BY a"), atOnce("SELECT nope"), atOnce("INSERT INTO t VALUES (31, 'x')"), atOnce("INSERT INTO t VALUES (31, 'x')"), ping, atOnce("SELECT COUNT(*) FROM t"),
		}},
		{name: "reset", setup: table, steps: slices.Concat(
			diffTexts("SET @a = 1, time_zone = '+03:00'", "CREATE TEMPORARY TABLE tt (a INT)", "BEGIN", "INSERT INTO t VALUES (41, 'gone')"), []diffStep{prepareStep(1, "SELECT 1"), diffCommand("reset connection", plain(mywire.ComResetConnection, "")), executeStep(7, 0)},
			diffTexts("SELECT @a, @@time_zone", "SELECT * FROM tt", "SELECT COUNT(*) FROM t"), []diffStep{prepareStep(2, "SELECT 2"), executeStep(2, 0)},
		)},
	}
}

func fileStep(sql string, packets ...[]byte) diffStep {
	return diffCommand(sql, diffPart{cmd: mywire.ComQuery, file: packets, message: func(*diffSession) []byte { return mywire.AppendCommand(nil, mywire.ComQuery, sql) }})
}

// fileOf executes a LOAD DATA LOCAL.
func fileOf(slot int, packets ...[]byte) diffStep {
	part := executeStep(slot, 0).parts[0]
	part.file = packets
	return diffCommand("file of a prepared statement", part)
}

func atOnce(sql string) diffStep {
	return diffCommand("at once "+sql, prepareStep(1, sql).parts[0], diffPart{cmd: mywire.ComStmtExecute, message: func(*diffSession) []byte {
		return mywire.AppendExecute(nil, 0, mywire.StmtLast, 0, nil, nil)
	}})
}

// bulkStep executes with rows of two strings; an empty one is NULL.
func bulkStep(slot int, values ...string) diffStep {
	return diffCommand(fmt.Sprintf("bulk %q", values), withSlot(mywire.ComStmtBulkExecute, slot, func(id uint32) []byte {
		p := binary.LittleEndian.AppendUint32([]byte{mywire.ComStmtBulkExecute}, id)
		p = append(p, mywire.BulkSendTypes, 0, mywire.TypeVarString, 0, mywire.TypeVarString, 0)
		for _, v := range values {
			if v == "" {
				p = append(p, 1)
				continue
			}
			p = mywire.AppendLenencString(append(p, 0), v)
		}
		return mywire.AppendPacket(nil, 0, p)
	}))
}

// Messages and answers around the bounds of a packet, and of what weir reads
// whole, pass unharmed in both directions.
func TestHugeMessagesEqualThoseOfADirectConnection(t *testing.T) {
	t.Parallel()
	testkit.Long(t, "sends messages of 18 MB")
	cfg := serverConfig()
	cfg.Settings = map[string]string{"max_allowed_packet": "256M", "net_buffer_length": "16384"}
	server := labtest.MariaDB(t, cfg)
	r := newDiffRig(t, server, func(w *mysql.Config) { w.PoolSize, w.LocalInfile = 2, true })
	setup := []string{"DROP TABLE IF EXISTS t", "CREATE TABLE t (a INT PRIMARY KEY, b LONGBLOB)"}
	text := func(size int) string { // a COM_QUERY with a payload of this size
		const sql = "SELECT LENGTH(''), 'end'"
		return "SELECT LENGTH('" + strings.Repeat("x", size-1-len(sql)) + "'), 'end'"
	}
	hash := "SELECT a, LENGTH(b), MD5(b) FROM t ORDER BY a"
	var around []diffStep
	for _, size := range []int{mywire.MaxPayload - 1, mywire.MaxPayload, mywire.MaxPayload + 1, 2 * mywire.MaxPayload} {
		around = append(around, diffTexts(text(size))...)
	}
	for _, size := range []int{mywire.MaxPayload - 5, mywire.MaxPayload - 4, mywire.MaxPayload - 3, mywire.MaxPayload + 9} { // with the length in front of it
		around = append(around, diffTexts(fmt.Sprintf("SELECT REPEAT('r', %d)", size))...)
	}
	const gathered = 18 << 20                                          // instead of 64 MiB, all of which the race detector looks at
	big := bytes.Repeat([]byte("0123456789abcdef"), gathered/16+1<<16) // beyond what weir reads whole
	for i, c := range []struct {
		name  string
		steps []diffStep
	}{
		{"around a packet", around},
		{"text", append(diffTexts("SELECT 2"), diffTexts("INSERT INTO t VALUES (1, '"+string(big)+"')", hash)...)},
		{"execute", []diffStep{prepareStep(1, "INSERT INTO t VALUES (?, ?)"), executeStep(1, 0, []byte("2"), big), executeStep(1, 0, []byte("2"), []byte("again")), executeStep(1, 0, []byte("3"), []byte("short")), diffTexts(hash)[0]}},
		{"long data", []diffStep{
			prepareStep(1, "INSERT INTO t VALUES (?, ?)"), diffCommand("long data", longPart(1, 1, big), longPart(1, 1, []byte("tail")), executeStep(1, 0, []byte("4"), nil).parts[0]), executeStep(1, 0, []byte("5"), []byte("after")), diffTexts(hash)[0],
		}},
		{"file", []diffStep{fileStep("LOAD DATA LOCAL INFILE 'f' INTO TABLE t", []byte("6\t"), big[:mywire.MaxPayload], big[:mywire.MaxPayload-7], []byte("\n7\tx\n")), diffTexts(hash)[0]}},
	} {
		if i == 1 {
			r.weir.GatherAtMost(t.Context(), gathered)
		}
		t.Run(c.name, func(t *testing.T) {
			caps := baseCaps
			if i%2 == 0 {
				caps |= mywire.CapDeprecateEOF
			}
			if at, excused, text := r.firstDifference(t, diffScript{setup: setup, caps: caps, steps: c.steps}); at >= 0 || excused > 0 {
				t.Errorf("step %d: %.2000s", at, text)
			}
		})
	}
}
