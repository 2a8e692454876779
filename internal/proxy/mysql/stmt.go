package mysql

import (
	"encoding/binary"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A route is how a statement outside a transaction runs.
type route uint8

const (
	routeAlone route = iota // on a backend of the client's own
	routeRead               // may be pipelined with reads of others
	routeWrite              // may join a group
)

// batchable are the effects that a grouped write may have. Reading settings is not among them:
// a lane's connections have some of their own.
const batchable = myscan.EffWrites

func routeOf(info *myscan.Statement) route {
	switch {
	case info.Count != 1 || info.Effects.Has(myscan.EffUnknown|myscan.EffMulti):
		return routeAlone
	case info.ReadOnly() && !info.Effects.Has(myscan.EffSleep|myscan.EffWeirShow|myscan.EffStatementSet):
		return routeRead
	}
	switch info.Verb {
	case myscan.VerbInsert, myscan.VerbReplace, myscan.VerbUpdate, myscan.VerbDelete:
		if info.Effects&^batchable == 0 {
			return routeWrite
		}
	}
	return routeAlone
}

// A stmt is a text to be prepared, shared by all clients of a pool that prepare it in the same
// settings. Each backend prepares it when it is first needed there.
type stmt struct {
	sql    string
	set    *session.Set     // in which it was prepared: they determine how its names and quotes are read
	info   myscan.Statement // its strings alias sql
	mode   myscan.Mode
	own    myscan.Effect // of the text alone
	epoch  uint64        // of the catalogue that info's effects come from; 0 if they are own
	shape  *sight.Shape
	route  route
	insert myscan.InsertShape
	rows   bool // insert is filled: it can join a multi-row statement
	target target
	quiet  bool // ... and its row causes no warnings by itself

	// body is its text without comments around it, and volatile whether it calls a function
	// whose result changes by itself: set for the cache, at the first lookup.
	body     string
	volatile bool

	params  int
	answer  []byte        // the server's to COM_STMT_PREPARE, cached for others
	at      time.Duration // when it was received
	refs    int           // client statements
	private bool          // not among those of the pool
	// learning: it is being prepared on a shared backend.
	learning bool
}

// long reports whether the statement's text is too long to be parsed on a loop.
func (st *stmt) long() bool { return len(st.sql) > maxScanned }

// A target is the table that a write goes to, if it is exactly one.
type target struct {
	in            *session.Set // their database is that of a table without a schema
	schema, table string
	one           bool
}

// targetOf returns the target of a text that is read in the given settings.
func targetOf(in *session.Set, t *myscan.Text) target {
	to := target{in: in}
	to.schema, to.table, to.one = t.Target()
	return to
}

const (
	// maxStmts bounds the statements of a pool; those that no client holds are removed first.
	maxStmts = 10000
	// maxPrepared bounds the statements prepared on one backend; the server bounds them too,
	// over all connections.
	maxPrepared = 500
	// maxClientStmts bounds the statements of one client.
	maxClientStmts = 16382
	// maxClientTexts bounds the texts of the statements of one client.
	maxClientTexts = 32 << 20
	// maxStmtBytes bounds the texts of a pool's statements that no client holds, and
	// maxPreparedBytes those prepared on one backend.
	maxStmtBytes     = 16 << 20
	maxPreparedBytes = 8 << 20
	// maxSharedText bounds the texts that are kept for sharing.
	maxSharedText = 64 << 10
	// answerKeep is how old the server's description of a statement may be when weir sends it
	// to another client. Executions return a new description, so this only limits what a client
	// sees between the two.
	answerKeep = 5 * time.Second
)

// read records what the statement's text shows.
func (st *stmt) read(asRead *myscan.Text, mode myscan.Mode) {
	st.info = asRead.Scan()
	st.own, st.mode, st.target = st.info.Effects, mode, targetOf(st.set, asRead)
	st.route = routeOf(&st.info)
	if st.info.Verb == myscan.VerbInsert {
		st.insert, st.rows = asRead.Insert()
		st.quiet = st.rows && quiet(st.insert.Tuple, mode)
	}
}

func affectsReading(name string) bool {
	return name == databaseSetting || name == "sql_mode" || isCharset(name)
}

// readsOtherwise reports whether a text may have different meanings in the two sets of
// settings.
func readsOtherwise(a, b *session.Set) bool {
	if a == b {
		return false
	}
	for _, name := range [...]string{
		databaseSetting, "sql_mode", "character_set_client", "character_set_connection", "collation_connection",
	} {
		x, inA := a.Get(name)
		y, inB := b.Get(name)
		if inA != inB || x != y {
			return true
		}
	}
	return false
}

// appendExecute appends the unit's COM_STMT_EXECUTE for a backend's statement, always with
// types: another client may have executed the backend's statement before.
func (u *unit) appendExecute(out []byte, id uint32) []byte {
	return appendExecute(out, u.raw, u.st.params, u.types, id)
}

// appendBulk is appendExecute for MariaDB's COM_STMT_BULK_EXECUTE.
func appendBulk(out, raw, payload []byte, m *mywire.BulkMsg, cs *clientStmt, id uint32) []byte {
	at := len(out)
	if m.Flags&mywire.BulkSendTypes != 0 || len(cs.types) != 2*cs.st.params {
		out = append(out, raw...)
	} else {
		flags := m.Flags | mywire.BulkSendTypes
		whole := append(make([]byte, 0, len(payload)+len(cs.types)), payload[:5]...)
		whole = append(binary.LittleEndian.AppendUint16(whole, flags), cs.types...)
		out = mywire.AppendPacket(out, 0, append(whole, m.Rows...))
	}
	mywire.SetStmtID(out[at:], id)
	return out
}

func appendExecute(out, raw []byte, params int, types []byte, id uint32) []byte {
	payload, _, err := mywire.Payload(raw)
	if err != nil {
		panic("a message that was found whole is not") // see client.feed
	}
	nulls := mywire.NullsLen(params)
	if params == 0 || (len(payload) > 10+nulls && payload[10+nulls] != 0) || len(types) != 2*params {
		at := len(out)
		out = append(out, raw...)
		mywire.SetStmtID(out[at:], id)
		return out
	}
	n := len(payload) + len(types)
	if n >= mywire.MaxPayload {
		m, err := mywire.ParseExecute(payload, params, 0)
		if err != nil {
			return mywire.AppendPacket(out, 0, payload) // the server reports what is wrong with it
		}
		return mywire.AppendExecute(out, 0, id, m.Flags, m.Nulls, types, m.Values)
	}
	out = append(mywire.AppendHeader(out, n, 0), payload[0])
	out = binary.LittleEndian.AppendUint32(out, id)
	out = append(out, payload[5:10+nulls]...)
	out = append(append(out, 1), types...)
	return append(out, payload[11+nulls:]...)
}
