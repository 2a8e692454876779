package pgrepl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// ErrUnsupported says that a message belongs to versions 2 to 4 of pgoutput's protocol:
// transactions streamed before they commit, or two-phase commit. This package requests version
// 1, so the server sends none of them: it spools large transactions itself and sends them after
// they have committed.
var ErrUnsupported = errors.New("message of a newer pgoutput protocol")

// Message is one message of pgoutput: *Begin, *Commit, *Origin, *Relation,
// *Type, *Insert, *Update, *Delete, *Truncate or *LogicalMessage.
type Message interface{ message() }

// Begin starts a committed transaction. Its changes follow, and then a Commit; transactions do
// not interleave.
type Begin struct {
	CommitLSN LSN // of the commit record
	Time      time.Time
	XID       uint32
}

// Commit ends a transaction.
type Commit struct {
	CommitLSN LSN // of the commit record, as in Begin
	// End is the position after the commit record. Confirming it confirms the transaction and
	// all before it.
	End  LSN
	Time time.Time
}

// Origin says that a transaction was replicated from another server.
type Origin struct {
	CommitLSN LSN    // on that server
	Name      string // of the replication origin
}

// Relation describes a table. It precedes the first change to the table, and is sent again
// after each change of its definition. A decoded Relation is never modified, so it may be kept.
type Relation struct {
	OID       uint32
	Namespace string // "pg_catalog" in place of the protocol's empty name
	Name      string
	// Identity says which columns an old row has: 'd' those of the primary key, 'f' all, 'i' an
	// index's columns, 'n' none.
	Identity byte
	Columns  []Column
}

// Column is a column of a relation, in the order of the values of rows.
type Column struct {
	Name    string
	TypeOID uint32
	TypeMod int32 // pg_attribute.atttypmod
	Key     bool  // part of the replica identity
}

// Column returns the index of the column with that name, or -1.
func (r *Relation) Column(name string) int {
	for i := range r.Columns {
		if r.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// Type describes a type that is not built in.
type Type struct {
	OID       uint32
	Namespace string
	Name      string
}

// ValueKind is the representation of a value.
type ValueKind byte

// The kinds of value.
const (
	Null ValueKind = 'n'
	// Unchanged is a TOASTed value that an UPDATE did not change: the server does not send it.
	Unchanged ValueKind = 'u'
	Text      ValueKind = 't' // in the output format of the type
	Binary    ValueKind = 'b' // in the binary send format of the type
)

// Value is a column's value. Data aliases the message.
type Value struct {
	Kind ValueKind
	Data []byte // nil for Null and Unchanged
}

// Insert is a new row.
type Insert struct {
	Relation *Relation
	New      []Value
}

// OldKind says which part of the old row a change contains.
type OldKind byte

// The kinds of old row.
const (
	OldNone OldKind = 0   // none: the identity did not change
	OldKey  OldKind = 'K' // the columns of the replica identity; others are Null
	OldRow  OldKind = 'O' // all columns (REPLICA IDENTITY FULL)
)

// Update is an updated row.
type Update struct {
	Relation *Relation
	OldKind  OldKind
	Old      []Value // empty with OldNone
	New      []Value
}

// Delete is a deleted row.
type Delete struct {
	Relation *Relation
	OldKind  OldKind // OldKey or OldRow
	Old      []Value
}

// Truncate is a TRUNCATE of tables.
type Truncate struct {
	Relations       []*Relation
	Cascade         bool
	RestartIdentity bool
}

// LogicalMessage is a message of pg_logical_emit_message.
type LogicalMessage struct {
	// Transactional messages are sent within their transaction, if it commits; others
	// immediately, and outside of transactions.
	Transactional bool
	LSN           LSN // of the message's record
	Prefix        string
	Content       []byte
}

func (*Begin) message()          {}
func (*Commit) message()         {}
func (*Origin) message()         {}
func (*Relation) message()       {}
func (*Type) message()           {}
func (*Insert) message()         {}
func (*Update) message()         {}
func (*Delete) message()         {}
func (*Truncate) message()       {}
func (*LogicalMessage) message() {}

// Decoder decodes the messages of one pgoutput stream in order, protocol version 1. It
// remembers the relations, so a new stream needs a new Decoder. The zero value is ready to use.
// It is used by one goroutine.
type Decoder struct {
	relations map[uint32]*Relation

	// Decode returns pointers to these.
	begin    Begin
	commit   Commit
	insert   Insert
	update   Update
	del      Delete
	truncate Truncate
	logical  LogicalMessage
}

// Relation returns the description of a table in this stream, or nil if there was none.
func (d *Decoder) Relation(oid uint32) *Relation { return d.relations[oid] }

// Decode decodes one message: the Data of a Frame. The result, except a *Relation, a *Type or
// an *Origin, is valid until the next call, and its byte slices alias data. Rows are decoded
// without allocation.
//
// The errors are pgwire.ErrMalformed and ErrUnsupported; after either, the stream cannot be
// decoded further.
func (d *Decoder) Decode(data []byte) (Message, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("empty pgoutput message: %w", pgwire.ErrMalformed)
	}
	r := reader{b: data[1:]}
	m := d.decode(data[0], &r)
	switch {
	case m == nil && !r.bad && bytes.IndexByte([]byte("ScEApPbKr"), data[0]) >= 0:
		return nil, fmt.Errorf("pgoutput message %q: %w", data[0], ErrUnsupported)
	case m == nil || r.bad || len(r.b) != 0:
		return nil, fmt.Errorf("pgoutput message %q of %d bytes: %w", data[0], len(data), pgwire.ErrMalformed)
	}
	return m, nil
}

// decode returns nil for an unknown type of message.
func (d *Decoder) decode(typ byte, r *reader) Message {
	switch typ {
	case 'B':
		d.begin = Begin{CommitLSN: r.lsn(), Time: r.time(), XID: r.uint32()}
		return &d.begin
	case 'C':
		r.byte() // flags, none defined
		d.commit = Commit{CommitLSN: r.lsn(), End: r.lsn(), Time: r.time()}
		return &d.commit
	case 'O':
		return &Origin{CommitLSN: r.lsn(), Name: r.string()}
	case 'R':
		return d.relation(r)
	case 'Y':
		return &Type{OID: r.uint32(), Namespace: r.namespace(), Name: r.string()}
	case 'I':
		d.insert.Relation = d.known(r)
		r.expect('N')
		d.insert.New = r.row(d.insert.New, d.insert.Relation)
		return &d.insert
	case 'U':
		return d.decodeUpdate(r)
	case 'D':
		d.del.Relation = d.known(r)
		d.del.OldKind = OldKind(r.byte())
		if d.del.OldKind != OldKey && d.del.OldKind != OldRow {
			r.bad = true
		}
		d.del.Old = r.row(d.del.Old, d.del.Relation)
		return &d.del
	case 'T':
		return d.decodeTruncate(r)
	case 'M':
		flags := r.byte()
		d.logical = LogicalMessage{Transactional: flags&1 != 0, LSN: r.lsn(), Prefix: r.string(), Content: r.sized()}
		return &d.logical
	}
	return nil
}

func (d *Decoder) decodeUpdate(r *reader) Message {
	u := &d.update
	u.Relation, u.OldKind, u.Old = d.known(r), OldNone, u.Old[:0]
	kind := r.byte()
	if kind == byte(OldKey) || kind == byte(OldRow) {
		u.OldKind = OldKind(kind)
		u.Old = r.row(u.Old, u.Relation)
		kind = r.byte()
	}
	if kind != 'N' {
		r.bad = true
	}
	u.New = r.row(u.New, u.Relation)
	return u
}

func (d *Decoder) decodeTruncate(r *reader) Message {
	n := r.uint32()
	flags := r.byte()
	d.truncate = Truncate{Relations: d.truncate.Relations[:0], Cascade: flags&1 != 0, RestartIdentity: flags&2 != 0}
	for i := uint32(0); i < n && !r.bad; i++ {
		d.truncate.Relations = append(d.truncate.Relations, d.known(r))
	}
	return &d.truncate
}

// relation decodes a Relation and remembers it.
func (d *Decoder) relation(r *reader) Message {
	rel := &Relation{OID: r.uint32(), Namespace: r.namespace(), Name: r.string(), Identity: r.byte()}
	n := int(r.uint16())
	for i := 0; i < n && !r.bad; i++ {
		flags := r.byte()
		rel.Columns = append(rel.Columns, Column{
			Name: r.string(), TypeOID: r.uint32(), TypeMod: int32(r.uint32()), Key: flags&1 != 0,
		})
	}
	if r.bad {
		return rel
	}
	if d.relations == nil {
		d.relations = map[uint32]*Relation{}
	}
	d.relations[rel.OID] = rel
	return rel
}

// known reads the OID of a relation that must have been described.
func (d *Decoder) known(r *reader) *Relation {
	rel := d.relations[r.uint32()]
	if rel == nil {
		r.bad = true
	}
	return rel
}

// reader reads the fields of one message. After the first field that is missing, bad is true
// and all fields read as zero.
type reader struct {
	b   []byte
	bad bool
}

// take returns the next n bytes, or nil if there are fewer.
func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) expect(b byte) {
	if r.byte() != b {
		r.bad = true
	}
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) lsn() LSN { return LSN(r.uint64()) }

func (r *reader) time() time.Time { return protocolTime(int64(r.uint64())) }

func (r *reader) string() string {
	i := bytes.IndexByte(r.b, 0)
	if i < 0 {
		r.bad = true
		return ""
	}
	s := string(r.take(i))
	r.take(1)
	return s
}

func (r *reader) namespace() string {
	if s := r.string(); s != "" {
		return s
	}
	return "pg_catalog"
}

// sized reads bytes that are preceded by their length.
func (r *reader) sized() []byte { return r.take(int(int32(r.uint32()))) }

// row reads a row into dst, which it overwrites. The number of values must be the relation's.
func (r *reader) row(dst []Value, rel *Relation) []Value {
	dst = dst[:0]
	n := int(r.uint16())
	if rel == nil || n != len(rel.Columns) {
		r.bad = true
	}
	for i := 0; i < n && !r.bad; i++ {
		v := Value{Kind: ValueKind(r.byte())}
		switch v.Kind {
		case Null, Unchanged:
		case Text, Binary:
			v.Data = r.sized()
		default:
			r.bad = true
		}
		dst = append(dst, v)
	}
	return dst
}
