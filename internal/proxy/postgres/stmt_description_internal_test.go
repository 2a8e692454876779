package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A server that says more types of parameters than it sends, or fewer, loses its connection.
func TestParametersThatAreCutOff(t *testing.T) {
	li := newLiar(t)
	for _, body := range []string{"", "\x00", "\x00\x02\x00\x00\x00\x14", "\x00\x00\x00\x00\x00\x14"} {
		li.call(func() {
			st := li.new(true)
			defer st.end()
			u := li.l.newUnit(unitHidden)
			st.b.described(u, expect{code: expHiddenDescribe}, pgwire.ServerParameterDescription, []byte(body))
			li.l.Settle()
			if st.closed == nil || !strings.Contains(st.closed.Error(), "ParameterDescription") {
				t.Errorf("%q: %v", body, st.closed)
			}
		})
	}
}

// Unknown types of parameters are those that the server reports first, even if the columns are
// already known.
func TestParametersThatAreKnownLater(t *testing.T) {
	li := newLiar(t)
	for _, own := range []bool{true, false} {
		li.call(func() {
			st := li.new(true)
			defer st.end()
			u, x := li.l.newUnit(unitClient), expect{code: expHiddenDescribe, own: own}
			x.st = st.p.stmts.intern(st.p.settings.Empty(), st.b.lex, []byte("SELECT k FROM t WHERE v = $1\x00\x00\x00"))
			body := oneColumn[pgwire.HeaderLen+2+pgwire.HeaderLen:]
			x.st.desc.columns = columnsOf(body)
			for _, oid := range []byte{20, 20, 25} {
				st.b.described(u, x, pgwire.ServerParameterDescription, []byte{0, 1, 0, 0, 0, oid})
				st.b.described(u, x, pgwire.ServerRowDescription, body)
				if x.st.desc.columns == 0 || string(x.st.desc.params) != "\x00\x01\x00\x00\x00\x14" {
					t.Errorf("own %v: known are %q", own, x.st.desc.params)
				}
			}
		})
	}
}

// Of a statement that was to be parsed again nothing is known where the server has skipped that.
func TestTypesOfASkippedParse(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		s := st.p.stmts.intern(st.p.settings.Empty(), st.b.lex, []byte("SELECT k FROM t WHERE v = $1\x00\x00\x00"))
		k, u := &st.b.backendStmts, []*unit{li.l.newUnit(unitClient), li.l.newUnit(unitClient), li.l.newUnit(unitClient)}
		k.begin(u[0])
		k.learn(u[0], s) // by a client's own Parse, whose types nobody has compared
		k.ended(u[0])
		s.desc.params = []byte{0, 1, 0, 0, 0, 20}
		k.begin(u[1])
		st.b.s.Write(pgwire.AppendBind(nil, "", "fails", new(pgwire.BindArgs)))
		u[1].exp = append(u[1].exp, expect{code: expBind})
		k.need(u[1], s)
		k.begin(u[2])
		if k.knows(u[2], s) {
			t.Error("its types count as those that clients were told while the Parse may be skipped")
		}
		k.unlearn(u[1])
		k.ended(u[1])
		if k.knows(u[2], s) {
			t.Error("its types count as those that clients were told when the Parse was skipped")
		}
		k.learn(u[2], s)
		k.compared(u[1], s, true, true)
		if was := k.prepared[s]; was.params || was.columns {
			t.Error("what was said of the statement before it was parsed again counts")
		}
	})
}

// Clients of another process come in any order, some with what a statement meant before a change
// of its columns. There is one statement for each meaning, and who parses the text next gets the
// first of them, to be compared.
func TestToldInAnotherProcess(t *testing.T) {
	t.Parallel()
	in := &poolStmts{proof: &dbCatalogue{}, shapes: sight.NewShapes(), text: new(sqlscan.Text), scans: new(scans), byKey: make(map[string]*stmt)}
	sets := session.NewTable()
	next := func() *stmt {
		return in.intern(sets.Empty(), lexical{"UTF8", "on"}, []byte("SELECT v FROM t\x00\x00\x00"))
	}
	first := next()
	seen := map[uint64]*stmt{}
	for range 3 {
		for _, columns := range []uint64{1, 3, 5} {
			was := stmtDescription{columns: columns}
			was.expire()
			st := in.toldAs(next(), was)
			st.refs++
			if seen[columns] == nil {
				seen[columns] = st
			}
			if st != seen[columns] || st.desc.columns != columns {
				t.Errorf("columns %d: another statement, with columns %d", columns, st.desc.columns)
			}
		}
	}
	if next() != first || !first.desc.old(0) {
		t.Errorf("the next gets the statement with columns %d, old %v", next().desc.columns, first.desc.old(0))
	}
	first.refs, in.bytes = 0, maxStmtBytes // and the next text has those go that nobody names
	in.intern(sets.Empty(), lexical{"UTF8", "on"}, []byte("SELECT 2\x00\x00\x00"))
	if st := next(); st == first || st != seen[st.desc.columns] {
		t.Errorf("the next gets the statement with columns %d, which nobody has", st.desc.columns)
	}
}

// What was told of a statement is compared by one unit for all when it is old, and by each when
// it may be wrong.
func TestOneComparesForAll(t *testing.T) {
	t.Parallel()
	st := &stmt{tail: []byte("INSERT INTO t VALUES ($1)\x00\x00\x00"), desc: stmtDescription{params: []byte{0, 0}, heard: true}}
	count := func(now time.Duration) (n int) {
		for range 5 {
			if u := (&unit{ops: []op{{kind: pgwire.ClientParse, st: st}}}); u.compares(now) {
				n++
			}
		}
		return n
	}
	now := 5 * toldKeep
	for _, test := range []struct {
		what string
		do   func()
		want int
	}{
		{"old", func() {}, 1},
		{"being compared", func() {}, 0},
		{"not answered", func() { now += 2 * toldKeep }, 1},
		{"compared", func() { st.desc.at = now }, 0},
		{"perhaps wrong", st.desc.expire, 5},
		{"unknown", func() { st.desc = stmtDescription{} }, 5},
	} {
		if test.do(); count(now) != test.want {
			t.Errorf("%s: want %d that compare", test.what, test.want)
		}
	}
}
