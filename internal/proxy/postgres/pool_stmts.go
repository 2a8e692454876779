package postgres

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// poolStmts are the prepared statements that the clients of a pool share.
type poolStmts struct {
	proof  *dbCatalogue // of the database
	shapes *sight.Shapes
	text   *sqlscan.Text // the loop's; of the last statement that was judged
	scans  *scans        // the loop's

	byKey  map[string]*stmt
	bytes  int // of the keys
	seq    uint64
	keyBuf []byte
}

// scans counts the texts that a loop has scanned.
type scans struct {
	n       uint64
	longest int // the longest of them
}

func (s *scans) note(sql string) { s.n, s.longest = s.n+1, max(s.longest, len(sql)) }

// shape returns the statistics of statements like t.
func (in *poolStmts) shape(t *sqlscan.Text, verb sqlscan.Verb) *sight.Shape {
	return in.shapes.Of(t.Fingerprint(), verb.String(), func(limit int) string { return sqlscan.Normalize(t.String(), limit) })
}

// internal is a statement of weir's own.
func (in *poolStmts) internal(sql string) *stmt {
	in.seq++
	return &stmt{srvName: fmt.Sprintf("%sown_%d", srvPrefix, in.seq), tail: append(append([]byte(sql), 0), 0, 0), sql: sql, shape: &sight.Shape{}}
}

// forClient is intern for a client. Clients that share the statement have its
// settings in common, and so read its literals alike.
func (in *poolStmts) forClient(c *client, tail []byte) *stmt {
	st := in.intern(c.set, c.texts.lexical(), tail)
	st.reads(c.texts.lexical())
	in.refresh(st)
	if c.stmts.readsByItself(st) {
		return in.single(st)
	}
	return st
}

// intern returns the shared statement for the body of a Parse message after
// its name.
func (in *poolStmts) intern(set *session.Set, as lexical, tail []byte) *stmt {
	head := in.key(set, as, tail)
	if s := in.byKey[string(in.keyBuf)]; s != nil {
		return s
	}
	key := string(in.keyBuf)
	rest := key[head:]
	s := in.make(key, unsafe.Slice(unsafe.StringData(rest), len(rest)), as) // one copy; tails are not written to
	s.set, s.as = set, as
	in.keep(s)
	return s
}

// keep adds a statement to those that the pool's clients share, unless its text is long.
func (in *poolStmts) keep(s *stmt) {
	if len(in.byKey) >= maxStmts || in.bytes+len(s.key) > maxStmtBytes {
		in.bytes = 0
		for k, s := range in.byKey {
			for s != nil && s.refs == 0 {
				s = s.other
			}
			if s == nil {
				delete(in.byKey, k)
			} else {
				in.byKey[k] = s
				in.bytes += len(k)
			}
		}
	}
	if len(s.tail) <= maxSharedText && in.bytes+len(s.key) <= maxStmtBytes {
		in.byKey[s.key] = s
		in.bytes += len(s.key)
	}
}

// adopt is intern for a statement that was scanned outside of the loop. It is judged when it
// is first bound.
func (in *poolStmts) adopt(set *session.Set, as lexical, made readStmt) *stmt {
	s := made.stmt
	in.key(set, as, s.tail)
	if other := in.byKey[string(in.keyBuf)]; other != nil && !s.own {
		return other
	}
	s.key, s.srvName, s.set, s.as = string(in.keyBuf), in.name(), set, as
	s.info, s.judged = catalogue.Reading{Statement: s.text}, notJudged
	s.shape = in.shapes.Of(made.print, s.text.Verb.String(), func(limit int) string { return sqlscan.Normalize(s.asRead, limit) })
	if s.single = s.own; !s.single {
		in.keep(s)
	}
	return s
}

// notJudged is the epoch of no index.
const notJudged = math.MaxUint64

// key puts the key of a statement into keyBuf, and returns where the tail begins in it.
func (in *poolStmts) key(set *session.Set, as lexical, tail []byte) (head int) {
	in.keyBuf = append(append(in.keyBuf[:0], set.Key()...), 1)
	in.keyBuf = append(append(append(in.keyBuf, as.encoding...), as.conforming...), 1)
	head = len(in.keyBuf)
	in.keyBuf = append(in.keyBuf, tail...)
	return head
}

func (in *poolStmts) make(key string, tail []byte, as lexical) *stmt {
	s := read(tail, as, in.text)
	s.key, s.srvName = key, in.name()
	in.scans.note(s.sql)
	in.rejudge(s)
	s.shape = in.shape(in.text, s.info.Verb)
	return s
}

// read makes a statement of the body of a Parse message after its name. Afterwards t is its
// text.
func read(tail []byte, as lexical, t *sqlscan.Text) *stmt {
	end := bytes.IndexByte(tail, 0)
	sql := text(tail[:max(end, 0)])
	s := &stmt{tail: tail, sql: sql, asRead: as.reads(sql)}
	t.Read(s.asRead)
	s.text = scan(sql, t)
	s.literals, s.own = t.Literals()
	s.own = s.own || s.text.Verb == sqlscan.VerbExecute || s.text.Verb == sqlscan.VerbFetch
	if routeOf(&s.text) != routeWrite || s.asRead != sql {
		return s
	}
	switch s.text.Verb {
	case sqlscan.VerbInsert:
		s.insert, s.rows = t.Insert()
	case sqlscan.VerbUpdate, sqlscan.VerbDelete:
		if builtinParams(tail, end) {
			s.serial, s.serialOK = t.Serial()
		}
	}
	return s
}

// name is the next name for a statement on the server.
func (in *poolStmts) name() string {
	in.seq++
	return srvPrefix + strconv.FormatUint(in.seq, 36)
}

// A readStmt is a statement that was scanned outside of the loop, for no pool yet.
type readStmt struct {
	*stmt
	print uint64 // of its shape
}

// readAway is read outside of a loop.
func readAway(tail []byte, as lexical) readStmt {
	var t sqlscan.Text
	s := read(tail, as, &t)
	return readStmt{s, t.Fingerprint()}
}

// judge determines what a statement does, by its text and by the names in it.
func (in *poolStmts) judge(info sqlscan.Statement, t *sqlscan.Text) catalogue.Reading {
	in.proof.used = true
	return in.proof.index.Judge(info, t)
}

// rejudge judges a statement. Afterwards its text is the loop's.
func (in *poolStmts) rejudge(s *stmt) {
	in.scans.longest = max(in.scans.longest, len(s.sql))
	in.text.Read(s.asRead)
	s.info, s.judged = in.judge(s.text, in.text), in.proof.epoch
	s.route = routeOf(&s.info.Statement)
}

// refresh judges a statement again if more is known since.
func (in *poolStmts) refresh(s *stmt) {
	in.proof.used = true
	if s.judged != in.proof.epoch {
		in.rejudge(s)
	}
}

// replaceStale replaces a statement whose plan the server refused: the next Parse of
// the text makes a new one. Clients that parsed before the schema changed keep
// the old one, and its error, as on a direct connection.
func (in *poolStmts) replaceStale(s *stmt) *stmt {
	if !s.stale {
		s.stale = true
		if in.byKey[s.key] == s {
			delete(in.byKey, s.key)
		}
	}
	if n := in.byKey[s.key]; n != nil {
		return n
	}
	n := in.make(s.key, s.tail, s.lex)
	n.set, n.as = s.set, s.as
	n.reads(s.lex)
	in.byKey[s.key] = n
	return n
}

// unreadable is a prepared statement whose text weir does not read. It belongs to
// one client.
func (in *poolStmts) unreadable(tail []byte, as lexical) *stmt {
	st := in.internal("")
	st.tail, st.text, st.info, st.route, st.lex = slices.Clone(tail), opaque.Statement, opaque, routeAlone, as
	st.shape = in.unreadShape()
	return st
}

// unreadShape is the shape of all texts that weir does not read: splitting such a text into
// words might reveal its literals.
func (in *poolStmts) unreadShape() *sight.Shape {
	const text = "text in an encoding that weir does not read"
	return in.shapes.Of(sqlscan.Fingerprint(text), opaque.Verb.String(), func(int) string { return text })
}

// longText is a prepared statement with a long text, which has been scanned. It belongs to
// one client.
func (in *poolStmts) longText(tail []byte, as lexical, info catalogue.Reading) *stmt {
	st := in.internal("")
	st.tail = slices.Clone(tail)
	st.sql = text(st.tail[:max(bytes.IndexByte(st.tail, 0), 0)])
	st.as, st.asRead = as, as.reads(st.sql)
	st.text, st.info, st.judged, st.route, st.lex = info.Statement, info, in.proof.epoch, routeAlone, as
	st.shape = in.shapes.Other()
	return st
}
