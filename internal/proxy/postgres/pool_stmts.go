package postgres

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// poolStmts are the prepared statements that the clients of a pool share.
type poolStmts struct {
	proof  *proof // of the database
	shapes *sight.Shapes
	text   *sqlscan.Text // the loop's, of the statement that was judged last
	scans  *uint64       // the loop's, of texts that were read

	byKey  map[string]*stmt
	bytes  int // of the keys
	seq    uint64
	keyBuf []byte
}

// shape returns the statistics of statements like t.
func (in *poolStmts) shape(t *sqlscan.Text, verb sqlscan.Verb) *sight.Shape {
	return in.shapes.Of(t.Fingerprint(), verb.String(), func(limit int) string { return sqlscan.Normalize(t.String(), limit) })
}

// own is a statement of weir's own.
func (in *poolStmts) own(sql string) *stmt {
	in.seq++
	return &stmt{srvName: fmt.Sprintf("%sown_%d", srvPrefix, in.seq), tail: append(append([]byte(sql), 0), 0, 0), sql: sql, shape: &sight.Shape{}}
}

// of is intern for a client. Those who share the statement have its
// settings in common, and so read its literals alike.
func (in *poolStmts) of(c *client, tail []byte) *stmt {
	st := in.intern(c.set, c.texts.lexical(), tail)
	st.reads(c.texts.lexical())
	in.current(st)
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
	if len(in.byKey) >= maxStmts || in.bytes+len(in.keyBuf) > maxStmtBytes {
		in.bytes = 0
		for k, s := range in.byKey {
			if s.refs == 0 {
				delete(in.byKey, k)
			} else {
				in.bytes += len(k)
			}
		}
	}
	key := string(in.keyBuf)
	rest := key[head:]
	s := in.make(key, unsafe.Slice(unsafe.StringData(rest), len(rest)), as) // one copy; tails are not written to
	s.set, s.as = set, as
	if len(tail) <= maxSharedText && in.bytes+len(key) <= maxStmtBytes {
		in.byKey[key] = s
		in.bytes += len(key)
	}
	return s
}

// key has the key of a statement in keyBuf, and returns where the tail begins in it.
func (in *poolStmts) key(set *session.Set, as lexical, tail []byte) (head int) {
	in.keyBuf = append(append(in.keyBuf[:0], set.Key()...), 1)
	in.keyBuf = append(append(append(in.keyBuf, as.encoding...), as.conforming...), 1)
	head = len(in.keyBuf)
	in.keyBuf = append(in.keyBuf, tail...)
	return head
}

func (in *poolStmts) make(key string, tail []byte, as lexical) *stmt {
	end := bytes.IndexByte(tail, 0)
	sql := text(tail[:max(end, 0)])
	s := &stmt{
		key: key, tail: tail, sql: sql,
		srvName: in.name(),
		asRead:  as.reads(sql),
	}
	in.text.Read(s.asRead)
	*in.scans++
	s.text = scan(sql, in.text)
	s.literals, s.moment = in.text.Literals()
	in.judgeAgain(s)
	s.shape = in.shape(in.text, s.info.Verb)
	if s.route == routeWrite && s.info.Verb == sqlscan.VerbInsert && s.asRead == sql {
		s.insert, s.rows = in.text.Insert()
	}
	if s.route == routeWrite && (s.info.Verb == sqlscan.VerbUpdate || s.info.Verb == sqlscan.VerbDelete) && s.asRead == sql && builtinParams(tail, end) {
		s.serial, s.serialOK = in.text.Serial()
	}
	return s
}

// name is the next one for a statement on the server.
func (in *poolStmts) name() string {
	in.seq++
	return srvPrefix + strconv.FormatUint(in.seq, 36)
}

// judge says what a statement does, by its text and by its names.
func (in *poolStmts) judge(info sqlscan.Statement, t *sqlscan.Text) reading {
	in.proof.used = true
	return in.proof.index.judge(info, t)
}

// judgeAgain judges a statement. Its text is the loop's afterwards.
func (in *poolStmts) judgeAgain(s *stmt) {
	in.text.Read(s.asRead)
	s.info, s.judged = in.judge(s.text, in.text), in.proof.epoch
	s.route = routeOf(&s.info.Statement)
}

// current judges a statement again if more has become known since.
func (in *poolStmts) current(s *stmt) {
	in.proof.used = true
	if s.judged != in.proof.epoch {
		in.judgeAgain(s)
	}
}

// renew replaces a statement whose plan the server refused: the next Parse of
// the text makes a new one. Clients that parsed before the schema changed keep
// the old one, and its error, as they would directly.
func (in *poolStmts) renew(s *stmt) *stmt {
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

// opaque is a prepared statement whose text weir does not read. It belongs to
// one client.
func (in *poolStmts) opaque(tail []byte, as lexical) *stmt {
	st := in.own("")
	st.tail, st.text, st.info, st.route, st.lex = slices.Clone(tail), opaque.Statement, opaque, routeAlone, as
	st.shape = in.unreadShape()
	return st
}

// unreadShape is that of all texts that weir does not read: to cut one into words
// might show what is in its literals.
func (in *poolStmts) unreadShape() *sight.Shape {
	const text = "text in an encoding that weir does not read"
	return in.shapes.Of(sqlscan.Fingerprint(text), opaque.Verb.String(), func(int) string { return text })
}

// long is a prepared statement with a long text, which was read. It belongs to
// one client.
func (in *poolStmts) long(tail []byte, as lexical, info reading) *stmt {
	st := in.own("")
	st.tail = slices.Clone(tail)
	st.sql = text(st.tail[:max(bytes.IndexByte(st.tail, 0), 0)])
	st.asRead = as.reads(st.sql)
	st.text, st.info, st.judged, st.route, st.lex = info.Statement, info, in.proof.epoch, routeAlone, as
	st.shape = in.shapes.Other()
	return st
}
