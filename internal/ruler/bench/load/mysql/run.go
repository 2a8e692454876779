package myload

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Protocol is that of MySQL and MariaDB. mywire.ParseDSN reads the DSN; it must name a database.
var Protocol = &load.Protocol{
	Open: sqldb.OpenMySQL,
	Tables: func(w load.Workload) ([]string, error) {
		work, err := workOf(w)
		if err != nil {
			return nil, err
		}
		return work.setup(), nil
	},
	Dialer: newDialer,
	Seeds:  seeds,
}

// capsWanted are what common drivers ask for: no session tracking, and results that end with an
// OK packet.
const capsWanted = mywire.CapLongPassword | mywire.CapLongFlag | mywire.CapTransactions | mywire.CapMultiResults |
	mywire.CapPSMultiResults | mywire.CapPluginAuthLenenc | mywire.CapConnectAttrs | mywire.CapDeprecateEOF

func newDialer(c load.Config) (load.Dial, error) {
	work, err := workOf(c.Workload)
	if err != nil {
		return nil, err
	}
	target, err := mywire.ParseDSN(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	if target.Caps = capsWanted; target.TLSMode == "" || target.TLSMode == mywire.TLSPreferred {
		target.TLSMode = mywire.TLSDisabled // load.Run would refuse TLS
	}
	statement := c.Workload.Statement()
	return func(ctx context.Context, id int) (net.Conn, load.Client, error) {
		s, err := mywire.Connect(ctx, target)
		if err != nil {
			return nil, nil, err
		}
		k := &client{id: id, work: work, reply: reply{binary: !c.Text, keepsEOF: !s.Caps.Has(mywire.CapDeprecateEOF)}}
		if c.Text {
			k.text = statement
		} else if k.statement, err = s.Prepare(ctx, statement.Text(func(int) string { return "?" })); err != nil {
			_ = s.Close() // the run does not start
			return nil, nil, fmt.Errorf("prepare: %w", err)
		}
		return s.Conn, k, nil
	}, nil
}

// OpenIdle opens a session, runs one query and leaves it idle. It returns how to close it.
func OpenIdle(ctx context.Context, dsn string) (end func(context.Context) error, err error) {
	target, err := mywire.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	s, err := mywire.Connect(ctx, target)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := s.Query(ctx, "SELECT 1"); err != nil {
		_ = s.Close() // the query has failed already
		return nil, fmt.Errorf("ask: %w", err)
	}
	return func(context.Context) error { return s.Close() }, nil
}

// client is one connection's load.Client.
type client struct {
	id        int
	work      work
	text      load.Template // nil for the prepared protocol
	statement uint32        // ID of the prepared statement
	op        operation
	reply     reply
	// ids holds the insert id of each answered operation, by its number; 0 for one that failed.
	ids []uint64
}

func (c *client) Ask(b []byte, n int64) []byte {
	c.op = c.work.operation(c.id, n)
	c.reply.reset()
	if c.text != nil {
		return appendText(b, c.text, &c.op)
	}
	return appendExecute(b, c.statement, &c.op)
}

func (c *client) Take(b []byte) (used int, done bool, err error) { return c.reply.consume(b) }

func (c *client) Judge() *load.Wrong {
	got := &c.reply.answer
	if got.code == 0 && c.op.want.rows == 0 {
		c.ids = append(c.ids, got.insertID)
	} else {
		c.ids = append(c.ids, 0)
	}
	wrong := c.op.wrong(got, c.reply.detail)
	if wrong == "" {
		return nil
	}
	w := &load.Wrong{Class: "wrong answer", Text: wrong + " " + c.reply.detail, Effect: load.Claimed}
	if got.code != 0 && got.code != c.op.want.code {
		w.Class = "error " + strconv.Itoa(int(got.code))
		w.Effect = load.Refused
		if unsettled(got.code, string(c.reply.state[:])) {
			w.Effect = load.Unknown
		}
	}
	return w
}

// unsettled reports whether the statement may have been executed in spite of an error: the
// connection failed, or was ended by someone.
func unsettled(code uint16, state string) bool {
	switch code {
	case mywire.ErrServerShutdown, mywire.ErrMariaConnectionKilled:
		return true
	}
	return state[:2] == "08"
}

// InsertIDs are compared with the rows of the table.
func (c *client) InsertIDs() []uint64 { return c.ids }

// Quit is a COM_QUIT.
func (*client) Quit() []byte { return mywire.AppendQuit(nil) }
