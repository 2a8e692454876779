package postgres

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// oneColumn is what the server says of a statement without parameters that returns a column.
var oneColumn = pgwire.AppendRowDescription(pgwire.AppendParameterDescription(nil, nil), []pgwire.Field{{Name: "k", TypeOID: 23, TypeSize: 4, TypeMod: -1}})

const returning = "/* batch */ INSERT INTO t SELECT 1 RETURNING k"

// prepared is a client that was told what its statement s returns, on a connection that does not
// know it any more.
func (st *stage) prepared(sql string) *client {
	c := st.client(pgwire.AppendParse(nil, "s", sql, nil), pgwire.AppendDescribe(nil, pgwire.KindStatement, "s"), pgwire.AppendSync(nil))
	what := oneColumn
	if !strings.Contains(sql, "RETURNING") {
		what = slices.Concat(pgwire.AppendParameterDescription(nil, nil), noData)
	}
	st.answers(parseComplete, what, readyIdle)
	st.b.backendStmts.forget()
	return c
}

// executes is what runs a statement.
func executes(name string) []byte {
	return pgwire.AppendSync(pgwire.AppendExecute(pgwire.AppendBind(nil, "", name, new(pgwire.BindArgs)), "", 0))
}

// group has clients send a write each, which go to the server as one run.
func (st *stage) group(writes func()) *lane {
	for _, c := range st.clients {
		_ = st.told(c)
	}
	st.p.Claim(st.b)
	writes()
	if len(st.p.Excl) != 1 || st.p.Excl[0].Lane == nil {
		st.li.tb.Fatalf("no lane waits for the connection: %+v", st.p.Excl)
	}
	ln := st.p.Excl[0].Lane
	st.b.set = ln.set
	st.p.release(st.b)
	st.li.l.Settle()
	if ln.Runs[st.b] == nil {
		st.li.tb.Fatal("there is no run")
	}
	return ln
}

// asking is a stage with a run of the writes of two clients, of which the second asks for its columns.
func (li *liar) asking() (st *stage, first, second *client) {
	st = li.new(true)
	second, first = st.prepared(returning), st.client()
	st.group(func() {
		st.says(first, pgwire.AppendQuery(nil, "/* batch */ UPDATE t SET k = 1 WHERE k = 2"))
		st.says(second, executes("s"))
	})
	return st, first, second
}

// asked is asking, with the write of the first client answered: it waits for the end of the run.
func (li *liar) asked() (st *stage, first, second *client) {
	st, first, second = li.asking()
	st.answers(updated)
	if st.b.Depth() != 1 || !st.b.Head().asking {
		li.tb.Fatal("the server is not asked")
	}
	return st, first, second
}

var updated = slices.Concat(pgwire.AppendCommandComplete(nil, "UPDATE 1"), readyIdle)

// serve has the server answer all that is under way.
func (st *stage) serve() {
	for n := 0; n < 20 && st.b.Depth() > 0; n++ {
		switch u := st.b.Head(); {
		case u.asking:
			st.answers(parseComplete, oneColumn)
		case u.kind == unitHidden, u.instead != nil:
			st.answers(readyIdle)
		case u.kind == unitRows:
			member := slices.Concat(bindComplete, pgwire.AppendCommandComplete(nil, "UPDATE 1"))
			st.answers(slices.Repeat(member, len(u.grp.(*series).units)), readyIdle)
		case len(u.exp) > 0 && u.exp[0].code == expParse:
			st.answers(parseComplete, bindComplete, updated)
		default:
			st.answers(updated)
		}
	}
}

// uncancelled waits for the end of the cancel requests.
func (st *stage) uncancelled() {
	for over := false; !over; time.Sleep(time.Millisecond) {
		st.li.call(func() { over = st.b.Cancels == 0 })
	}
}

// While a cancel request is under way nothing is sent that it could hit in place of the statement
// that it is for, which has asked for its columns.
func TestNothingIsSentToACancelRequest(t *testing.T) {
	li := newLiar(t)
	for name, answer := range map[string][]byte{
		"void": slices.Concat(parseComplete, oneColumn),
		"hit":  pgwire.AppendError(nil, errCancelled()),
	} {
		t.Run(name, func(t *testing.T) {
			var st *stage
			var first, second *client
			li.call(func() {
				st, first, second = li.asked()
				if !second.cancel(func() {}) {
					t.Error("the server is not sent a request")
				}
				st.answers(answer)
				if st.b.Depth() != 1 || !st.b.Head().asking {
					t.Errorf("%d units are under way with the request", st.b.Depth())
				}
			})
			st.uncancelled()
			li.call(func() {
				defer st.end()
				st.answers(readyIdle)
				st.answers(readyIdle) // of the marker
				if got := st.told(second); !strings.Contains(got, "57014") {
					t.Errorf("who cancelled was told %q", got)
				}
				if got := st.told(first); !strings.Contains(got, "UPDATE 1") {
					t.Errorf("the other one was told %q", got)
				}
			})
		})
	}
}

// Members that wait again, for another asks for its columns, count once.
func TestMembersThatWaitAgainCountOnce(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		set := st.p.settings.Empty()
		st.p.serials.m = map[tableKey]*serialFacts{{set, "t"}: {state: tablePlain, columns: []string{"k"}, epoch: st.p.catalogue.epoch}}
		for _, sql := range []string{
			returning,
			"/* batch */ UPDATE t SET k = 1 WHERE k = 2",
			"/* batch */ UPDATE t SET k = 2 WHERE k = 3",
			returning + " AS other",
		} {
			st.prepared(sql)
		}
		ln := st.group(func() {
			for _, c := range st.clients {
				st.says(c, executes("s"))
			}
		})
		if ln.Members != 3 {
			t.Errorf("%d writes go with the first that asks, want those that do not ask", ln.Members)
		}
		st.serve()
		for i, c := range st.clients {
			if got := st.told(c); !strings.Contains(got, "UPDATE 1") {
				t.Errorf("member %d was told %q", i, got)
			}
		}
		if s := ln.Status(); s.Members != 4 || s.Groups != 2 {
			t.Errorf("%d writes in %d groups, want 4 in 2", s.Members, s.Groups)
		}
	})
}

// In a lane of rows, one that asks for its columns goes by itself, and the others can be cancelled
// meanwhile.
func TestOneAsksForALaneOfRows(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		types := st.p.guards.types
		st.p.tables.m = map[tableKey]*tableFacts{{st.p.settings.Empty(), "t"}: {state: tablePlain, guard: guard{types, pgwire.AppendBind(nil, "", types.srvName, new(pgwire.BindArgs))}}}
		const insert = "/* batch */ INSERT INTO t (k) VALUES (1) RETURNING k"
		asks, other := st.prepared(insert), st.client()
		ln := st.group(func() {
			st.says(other, pgwire.AppendParse(nil, "", insert, nil), executes(""))
			st.says(asks, executes("s"))
		})
		if ln.rows == nil || ln.Members != 1 || !st.b.Head().asking {
			t.Errorf("%d writes are under way, want the one that asks", ln.Members)
		}
		if other.cancel(func() {}) {
			t.Error("the server is sent a request")
		}
		if got := st.told(other); !strings.Contains(got, "57014") {
			t.Errorf("who cancelled was told %q", got)
		}
		st.serve()
		if got := st.told(asks); !strings.Contains(got, "UPDATE 1") {
			t.Errorf("the one that asks was told %q", got)
		}
	})
}

// A member whose client has cancelled it in its group is not run again when its turn ends, or its
// group fails. What it has parsed is not there.
func TestCancelWithinAGroup(t *testing.T) {
	li := newLiar(t)
	const update, insert = "/* batch */ UPDATE t SET k = 1 WHERE k = 2", "/* batch */ INSERT INTO t (k) VALUES (1)"
	for name, write := range map[string][]byte{
		"single": slices.Concat(pgwire.AppendParse(nil, "s", update, nil), executes("s")),
		"series": slices.Concat(pgwire.AppendParse(nil, "s", update, nil), executes("s")),
		"rows":   pgwire.AppendQuery(nil, insert),
	} {
		t.Run(name, func(t *testing.T) {
			var st *stage
			var first, second *client
			li.call(func() {
				st = li.new(true)
				set, types := st.p.settings.Empty(), st.p.guards.types
				st.p.tables.m = map[tableKey]*tableFacts{{set, "t"}: {state: tablePlain, guard: guard{types, pgwire.AppendBind(nil, "", types.srvName, new(pgwire.BindArgs))}}}
				facts := &serialFacts{state: tableOther, columns: []string{"k"}, epoch: st.p.catalogue.epoch, at: li.l.Now}
				st.p.serials.m = map[tableKey]*serialFacts{{set, "t"}: facts}
				if name == "series" {
					facts.state = tablePlain
				}
				first, second = st.client(), st.client()
				st.group(func() {
					for _, c := range st.clients {
						st.says(c, write)
					}
				})
				if st.b.Head().kind == unitHidden {
					st.answers(readyIdle) // of the settings
				}
				if together := st.b.Head().kind == unitRows; together != (name != "single") {
					t.Errorf("together: %v", together)
				}
				if first.cancel(func() {}) {
					t.Error("the server was sent a request, which may hit another member")
				}
				if name == "single" {
					st.answers(parseComplete, bindComplete)
				}
				st.answers(pgwire.AppendError(nil, pgwire.NewError(pgwire.CodeLockNotAvailable, "too long")), readyIdle)
			})
			for range 3 { // settings are in force a turn later
				li.call(st.serve)
			}
			li.call(func() {
				defer st.end()
				if got := st.told(first); !strings.Contains(got, "57014") {
					t.Errorf("who cancelled was told %q", got)
				}
				if got := st.told(second); !strings.Contains(got, "UPDATE 1") {
					t.Errorf("the other one was told %q", got)
				}
				if first.stmts.byName["s"] != nil {
					t.Error("who cancelled has a statement that it was not told of")
				}
			})
		})
	}
}

// A member that was cancelled before the server has said what it returns is not sent then.
func TestCancelBeforeAMemberIsSent(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st, first, second := li.asking()
		defer st.end()
		if second.cancel(func() {}) {
			t.Error("the server was sent a request, which may hit another member")
		}
		st.answers(updated)
		st.serve()
		if got := st.told(second); !strings.Contains(got, "57014") || strings.Contains(got, "UPDATE 1") {
			t.Errorf("who cancelled was told %q", got)
		}
		if got := st.told(first); !strings.Contains(got, "UPDATE 1") {
			t.Errorf("the other one was told %q", got)
		}
	})
}

// A member that asks goes elsewhere when the connection is lost, for nothing of it was sent.
func TestMembersThatAskGoElsewhere(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st, _, c := li.asked()
		defer st.end()
		st.b.s.Flush()
		st.b.s.Close(nil)
		if got := st.told(c); got != "" {
			t.Errorf("it was told %q", got)
		}
		if _, waits := st.p.Waits(func(u *unit) bool { return u.c == c }); !waits {
			t.Error("it does not wait for another connection")
		}
	})
}

// A write that was cancelled while the server was asked what it returns goes nowhere else when the
// connection is lost.
func TestCancelledWritesDoNotGoElsewhere(t *testing.T) {
	li := newLiar(t)
	for name, asked := range map[string]func() (st *stage, c *client){
		"group": func() (st *stage, c *client) {
			li.call(func() { st, _, c = li.asked() })
			return st, c
		},
		"alone": func() (st *stage, c *client) {
			li.call(func() {
				st, _, c = li.asked()
				st.answers(pgwire.AppendError(nil, pgwire.NewError(pgwire.CodeLockNotAvailable, "too long")), readyIdle)
				st.answers(readyIdle) // of the marker
			})
			li.call(func() { st.answers(readyIdle) }) // of its settings
			li.call(func() {})
			return st, c
		},
		"own backend": func() (st *stage, c *client) {
			li.call(func() {
				st = li.new(true)
				c = st.prepared("UPDATE t SET k = 1 RETURNING k")
				_ = st.told(c)
				st.says(c, executes("s"))
			})
			return st, c
		},
	} {
		t.Run(name, func(t *testing.T) {
			st, c := asked()
			li.call(func() {
				defer st.end()
				if st.b.Depth() != 1 || !c.cancel(func() {}) {
					t.Errorf("the server is not sent a request, with %d units under way", st.b.Depth())
				}
				st.b.s.Close(nil)
				li.l.Settle()
				if got := st.told(c); !strings.Contains(got, "57014") || c.responder.cancelled != nil {
					t.Errorf("who cancelled was told %q", got)
				}
			})
		})
	}
}

// A cancel request that comes too late for the question what a write returns, which its client's
// own connection is asked, ends the write.
func TestCancelBehindAQuestionOfColumns(t *testing.T) {
	li := newLiar(t)
	var st *stage
	var c *client
	li.call(func() {
		st = li.new(true)
		c = st.prepared("UPDATE t SET k = 1 RETURNING k")
		_ = st.told(c)
		st.says(c, executes("s"))
		if !c.cancel(func() {}) {
			t.Error("the server is not sent a request")
		}
		st.answers(parseComplete, oneColumn)
		if u := st.b.Head(); u.statements != 0 {
			t.Error("the write is sent with the request")
		}
	})
	st.uncancelled()
	li.call(func() {
		defer st.end()
		li.l.Settle()
		refused := pgwire.NewError(pgwire.CodeUndefinedStatement, "prepared statement \"%s\" does not exist", cancelled)
		st.answers(pgwire.AppendError(nil, refused), readyIdle)
		if got := st.told(c); !strings.Contains(got, "57014") {
			t.Errorf("who cancelled was told %q", got)
		}
	})
}

// A question that may be what ends the connection is not asked for ever.
func TestQuestionsThatEndConnections(t *testing.T) {
	li := newLiar(t)
	var st *stage
	var c *client
	li.call(func() {
		st = li.new(true)
		c = st.prepared("UPDATE t SET k = 1 RETURNING k")
		st.says(c, executes("s"))
	})
	over := false
	for n := 0; n < 2*core.MostLost && !over; n++ {
		li.call(func() {
			li.l.Now++ // calls may share a turn: the next connection is made after this one is lost
			st.b.s.Flush()
			st.b.s.Close(nil)
			li.l.Settle()
			if over = c.s.Closed || c.s.Closing; over {
				return
			}
			near, far := li.pair()
			st.others = append(st.others, st.server)
			st.server = far
			st.connected(near)
			if st.b.owner != c {
				t.Errorf("the client does not have connection %d", n)
			}
		})
	}
	if !over {
		t.Error("it is asked for ever")
	}
	li.call(st.end)
}

// The marker of a group is parsed where it may be there, for weir has forgotten all since.
func TestMarkerIsParsedWhereItMayBe(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		c := st.client()
		st.group(func() { st.says(c, pgwire.AppendQuery(nil, "/* batch */ UPDATE t SET k = 1 WHERE k = 2")) })
		st.markerParsed()
	})
	li.call(func() {
		st, _, second := li.asked()
		defer st.end()
		st.b.prepared[st.p.marker] = preparedStmt{}
		lost := pgwire.NewError(pgwire.CodeUndefinedStatement, "prepared statement \"%s\" does not exist", second.stmts.byName["s"].srvName)
		st.answers(pgwire.AppendError(nil, lost))
		st.markerParsed()
	})
}

// markerParsed looks for the marker in what the server was sent.
func (st *stage) markerParsed() {
	st.li.tb.Helper()
	st.b.s.Flush()
	sent := make([]byte, 1<<16)
	n, _ := unix.Read(st.server, sent)
	m := st.p.marker
	if !bytes.Contains(sent[:max(0, n)], pgwire.AppendParseRaw(pgwire.AppendClose(nil, pgwire.KindStatement, m.srvName), m.srvName, m.tail)) {
		st.li.tb.Errorf("the server is sent %q", sent[:max(0, n)])
	}
}
