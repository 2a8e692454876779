package mysql

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A stmt is a text to be prepared, shared by all clients of a pool that prepare
// it in the same settings. Each backend prepares it when it is first needed
// there.
type stmt struct {
	sql    string
	set    *session.Set     // in which it was prepared: its names and quotes are read so
	info   myscan.Statement // its strings alias sql
	mode   myscan.Mode
	own    myscan.Effect // of the text alone
	epoch  uint64        // of the catalog that info's effects come from; 0 if they are own
	shape  *sight.Shape
	route  route
	insert myscan.InsertShape
	rows   bool // insert is filled: one that can share a multi-row statement
	target target
	quiet  bool // ... and whose row gives no warnings by itself

	// body is its text without comments around it, and volatile whether it calls a function
	// whose result changes by itself: for the cache, when it was first asked.
	body     string
	volatile bool

	params  int
	answer  []byte        // the server's to COM_STMT_PREPARE, kept for others
	at      time.Duration // when that was
	refs    int           // client statements
	private bool          // not among those of the pool
	// learning: it is being prepared on a shared backend.
	learning bool
}

// A target is the table that a write goes to, if it is one.
type target struct {
	in            *session.Set // whose database a table without a schema is in
	schema, table string
	one           bool
}

// targetOf is the target of a text that is read in the given settings.
func targetOf(in *session.Set, t *myscan.Text) target {
	to := target{in: in}
	to.schema, to.table, to.one = t.Target()
	return to
}

const (
	// maxStmts bounds the statements of a pool; those that no client holds go
	// first.
	maxStmts = 10000
	// maxPrepared bounds the statements prepared on one backend; the server
	// bounds them too, for all connections together.
	maxPrepared = 500
	// maxClientStmts bounds those of one client.
	maxClientStmts = 16382
	// maxClientTexts bounds the texts of the statements of one client.
	maxClientTexts = 32 << 20
	// maxStmtBytes bounds the texts of a pool's statements that no client holds, and
	// maxPreparedBytes those prepared on one backend.
	maxStmtBytes     = 16 << 20
	maxPreparedBytes = 8 << 20
	// maxSharedText bounds the texts that are kept to be shared.
	maxSharedText = 64 << 10
	// answerKeep is how old the server's description of a statement may be when
	// it is given to another client. Executions describe themselves anew, so
	// this is only about what a client sees between the two.
	answerKeep = 5 * time.Second
)

// interned are the statements of a pool.
type interned struct {
	l      *loop
	byKey  map[string]*stmt
	bytes  int // of the texts interned since unused ones were last dropped
	keyBuf []byte
}

// shape finds what is known of statements like t, which was read in the given mode.
func (in *interned) shape(t *myscan.Text, mode myscan.Mode, verb myscan.Verb) *sight.Shape {
	return in.l.Shapes.Of(t.Fingerprint(), verb.String(), func(limit int) string { return myscan.Normalize(t.String(), mode, limit) })
}

// intern returns the shared statement for a text.
func (in *interned) intern(set *session.Set, sql []byte, mode myscan.Mode, private bool) *stmt {
	in.keyBuf = append(append(append(in.keyBuf[:0], set.Key()...), 1), sql...)
	if st := in.byKey[string(in.keyBuf)]; st != nil && !private {
		return st
	}
	if len(in.byKey) >= maxStmts || in.bytes > maxStmtBytes {
		in.bytes = 0
		for k, st := range in.byKey {
			if st.refs == 0 {
				delete(in.byKey, k)
			}
		}
	}
	key := string(in.keyBuf)
	st := &stmt{sql: key[len(key)-len(sql):], set: set, private: private || len(sql) > maxSharedText}
	mode.Multi = false
	asRead := in.l.read(st.sql, mode)
	st.info = asRead.Scan()
	st.shape = in.shape(asRead, mode, st.info.Verb)
	st.own, st.mode, st.target = st.info.Effects, mode, targetOf(set, asRead)
	st.route = routeOf(&st.info)
	if st.info.Verb == myscan.VerbInsert {
		st.insert, st.rows = asRead.Insert()
		st.quiet = st.rows && quiet(st.insert.Tuple, mode)
	}
	if !st.private {
		in.byKey[key] = st
		in.bytes += len(key)
	}
	return st
}

// forgetAnswers has statements described anew: the schema has changed.
func (in *interned) forgetAnswers() {
	for _, st := range in.byKey {
		st.answer = nil
	}
}

// kept are the statements that are prepared on a backend.
type kept struct {
	b         *backend
	prepared  map[*stmt]*instance
	textBytes int // of the prepared ones
	useSeq    uint64
}

// An instance is a prepared statement on one backend.
type instance struct {
	id   uint32
	used uint64
}

// use returns the backend's number of a statement that is prepared there.
func (k *kept) use(st *stmt) uint32 {
	in := k.prepared[st]
	k.useSeq++
	in.used = k.useSeq
	return in.id
}

// learn has a statement prepared, and makes room for it.
func (k *kept) learn(st *stmt, done func(err *mywire.Error)) {
	k.makeRoom(st)
	k.prepareAway(st, func(u *unit) {
		if u.err == nil {
			k.learned(st, u)
		}
		done(u.err)
	})
}

// prepareAway prepares a statement with the meaning that it had where its client
// prepared it: names belong to the database of then. So a session that is
// elsewhere by now goes there and back, in the settings that say how a text is read
// and in no others: a change of autocommit would commit the client's transaction.
func (k *kept) prepareAway(st *stmt, done func(u *unit)) {
	b := k.b
	away := readsOtherwise(st.set, b.set) && reachable(b.set, st.set, b.p.key.database)
	var astray *mywire.Error
	var there *session.Set
	if away {
		there = b.readingAs(st.set)
		b.visit(b.set, there, func(e *mywire.Error) { astray, b.Doomed = e, true })
	}
	b.hidden(mywire.ComStmtPrepare, func(u *unit) {
		if astray != nil {
			u.err, u.failed = astray, true // it means something else where it was prepared now
		}
		done(u)
	}).st = st
	b.s.Out = mywire.AppendPrepare(b.s.OutBuf(), st.sql)
	if away {
		b.visit(there, b.set, func(e *mywire.Error) {
			if !b.s.Closed {
				b.fail(fmt.Errorf("restore the settings of a session: %w", e)) // what comes next would run in others
			}
		})
	}
}

func saysHowToRead(name string) bool {
	return name == databaseSetting || name == "sql_mode" || isCharset(name)
}

// readsOtherwise reports whether a text may mean one thing in one set of settings
// and another in the other.
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

// learned takes note of a prepared statement from the server's answer.
func (k *kept) learned(st *stmt, u *unit) {
	b := k.b
	m, err := mywire.ParsePrepared(u.resp[mywire.HeaderLen:])
	if err != nil {
		b.fail(err) // the walk has found it whole
		return
	}
	if old := k.prepared[st]; old != nil {
		b.s.Out = mywire.AppendStmtClose(b.s.OutBuf(), old.id)
		b.s.Touch()
	} else {
		k.textBytes += len(st.sql)
	}
	k.useSeq++
	k.prepared[st] = &instance{id: m.StmtID, used: k.useSeq}
	st.params = int(m.Params)
	st.answer, st.at = append(st.answer[:0], u.resp...), b.p.l.Now
}

// makeRoom closes statements that were used long ago, if there are many or long
// ones.
func (k *kept) makeRoom(st *stmt) {
	if len(k.prepared) >= maxPrepared {
		k.evict()
	}
	for k.textBytes > 0 && k.textBytes+len(st.sql) > maxPreparedBytes {
		before := len(k.prepared)
		if k.evict(); len(k.prepared) == before {
			return
		}
	}
}

// evict closes the least recently used of a few statements.
func (k *kept) evict() {
	b := k.b
	var victim *stmt
	oldest, seen := ^uint64(0), 0
	for st, in := range k.prepared {
		if in.used < oldest && !k.needed(st) {
			victim, oldest = st, in.used
		}
		if seen++; seen >= 16 && victim != nil {
			break
		}
	}
	if victim == nil {
		return
	}
	b.s.Out = mywire.AppendStmtClose(b.s.OutBuf(), k.prepared[victim].id)
	b.s.Touch()
	delete(k.prepared, victim)
	k.textBytes -= len(victim.sql)
}

// needed reports whether a lane is about to send the statement here.
func (k *kept) needed(st *stmt) bool { return k.b.lane != nil && k.b.lane.needs(st) }

// appendExecute appends the unit's COM_STMT_EXECUTE for a backend's statement,
// with types in any case: the backend's statement may have been executed by
// somebody else before.
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
			return mywire.AppendPacket(out, 0, payload) // the server says what is wrong with it
		}
		return mywire.AppendExecute(out, 0, id, m.Flags, m.Nulls, types, m.Values)
	}
	out = append(mywire.AppendHeader(out, n, 0), payload[0])
	out = binary.LittleEndian.AppendUint32(out, id)
	out = append(out, payload[5:10+nulls]...)
	out = append(append(out, 1), types...)
	return append(out, payload[11+nulls:]...)
}
