package postgres

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// gives has the loop hand its clients over. The client that has gone is at *gone.
func (st *stage) gives() (gone *handover.Parcel, stop func()) {
	gone = new(handover.Parcel)
	st.li.srv.creds.learnOpen(st.p.key.user, true)
	st.li.l.Give(func(p *handover.Parcel) { *gone = *p; p.Delivered() })
	return gone, func() { st.li.l.Give(nil) }
}

// complete is the server's answer to a statement.
func complete(tag string) []byte { return append(pgwire.AppendCommandComplete(nil, tag), readyIdle...) }

// shows is its answer to weir, which asks what is left of the session: temporary objects or nothing.
func shows(temporary string) []byte {
	row := [][]byte{[]byte(temporary), []byte("f"), []byte("f"), []byte("f"), []byte("f")}
	return append(pgwire.AppendDataRow(pgwire.AppendRowDescription(nil, make([]pgwire.Field, len(row))), row), complete("SELECT 1")...)
}

// A client that never pauses is handed over when what has pinned it is gone: its next statement
// waits until the server has said so. Where it is not gone the client goes on.
func TestPinnedClientsThatNeverPauseAreHandedOver(t *testing.T) {
	const drop, next = "DROP TABLE mine", "CREATE TEMP TABLE mine (k int)"
	li := newLiar(t)
	for name, tt := range map[string]struct {
		behind bool // the next statement is sent before the answer
		left   string
	}{
		"nothing is left":                         {left: "f"},
		"something is left":                       {left: "t"},
		"sent without waiting":                    {behind: true, left: "f"},
		"sent without waiting, something is left": {behind: true, left: "t"},
	} {
		t.Run(name, func(t *testing.T) {
			li.call(func() {
				st := li.new(true)
				defer st.end()
				c := st.client(pgwire.AppendQuery(nil, next))
				st.answers(complete("CREATE TABLE"))
				st.answers(shows("t"))
				gone, stop := st.gives()
				defer stop()
				if c.link == nil || c.pins.held != pinTemp {
					t.Errorf("the client is pinned by %s", c.pins.held)
					return
				}
				if tt.behind {
					st.says(c, pgwire.AppendQuery(nil, drop), pgwire.AppendQuery(nil, next))
				} else {
					st.says(c, pgwire.AppendQuery(nil, drop))
				}
				st.answers(complete("DROP TABLE"))
				if !tt.behind {
					st.says(c, pgwire.AppendQuery(nil, next))
				}
				if st.b.Depth() != 1 || st.b.Head().kind != unitHidden {
					t.Errorf("%d units are under way, not only weir's question", st.b.Depth())
					return
				}
				st.answers(shows(tt.left))
				if tt.left == "t" {
					if gone.Session != nil || st.b.Depth() != 1 || st.b.Head().c != c {
						t.Errorf("handed over: %+v; %d units are under way", gone.Session, st.b.Depth())
					}
					return
				}
				if m, ok := gone.Session.(*movedClient); !ok || string(m.In) != string(pgwire.AppendQuery(nil, next)) {
					t.Errorf("handed over: %+v", gone.Session)
				}
			})
		})
	}
}

// A client that runs a COPY outside of a transaction while clients are handed over sends its data,
// and is handed over behind it.
func TestClientsThatCopyAreHandedOver(t *testing.T) {
	li := newLiar(t)
	li.call(func() {
		st := li.new(true)
		defer st.end()
		c := st.client(pgwire.AppendQuery(nil, "COPY t FROM STDIN"))
		gone, stop := st.gives()
		defer stop()
		st.answers(pgwire.AppendMessage(nil, pgwire.ServerCopyInResponse, []byte{0, 0, 0}))
		data := slices.Concat(pgwire.AppendCopyData(nil, []byte("1\n")), pgwire.AppendCopyDone(nil))
		st.says(c, data)
		st.b.s.Flush()
		sent := make([]byte, 1<<16)
		n, _ := unix.Read(st.server, sent)
		if !strings.HasSuffix(string(sent[:max(0, n)]), string(data)) {
			t.Errorf("the server is sent %q", sent[:max(0, n)])
		}
		st.answers(complete("COPY 1"))
		st.says(c, pgwire.AppendQuery(nil, "SELECT 1"))
		if gone.Session == nil {
			t.Error("the client was not handed over")
		}
	})
}
